{{/* Labels of every object. The argument: a dict with root and name. */}}
{{- define "hotvirt.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: hotvirt
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end }}

{{/* An image: a dict with root and name. */}}
{{- define "hotvirt.image" -}}
{{- $image := .root.Values.image -}}
{{- with $image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{ $image.repository }}/{{ .name }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* Where the API server finds Hotvirt; a dict with path. Hotvirt itself writes the caBundle. */}}
{{- define "hotvirt.clientConfig" -}}
service:
  name: hotvirt-api
  namespace: kubevirt
  port: 443
  path: {{ .path }}
{{- end }}

{{/* With cert-manager its injector writes the caBundle. */}}
{{- define "hotvirt.injection" -}}
{{- if .Values.certificates.certManager.enabled }}
annotations:
  cert-manager.io/inject-ca-from: kubevirt/hotvirt-api
{{- end }}
{{- end }}

{{/* How much a container of Hotvirt may do that needs nothing from its node. */}}
{{- define "hotvirt.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Probes on the plain HTTP port, whose name is http. */}}
{{- define "hotvirt.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: http}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{/* Both components see for themselves, before they touch anything, that no other KubeVirt is there. */}}
{{- define "hotvirt.lookAround" -}}
- apiGroups: [apps]
  resources: [deployments]
  resourceNames: [virt-operator, virt-controller]
  verbs: [list]
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames:
    - kubevirts.kubevirt.io
    - virtualmachines.kubevirt.io
    - virtualmachineinstances.kubevirt.io
    - virtualmachineinstancemigrations.kubevirt.io
  verbs: [get]
{{- end }}

{{/* Most updates of a machine are of its labels or finalizers, about which there is nothing to say. */}}
{{- define "hotvirt.changesTheSpec" -}}
matchConditions:
  - name: changes-the-spec
    expression: 'request.operation != "UPDATE" || object.spec != oldObject.spec'
{{- end }}

{{/* The spec of the KubeVirt object. */}}
{{- define "hotvirt.settings" -}}
{{- $developer := dict "useEmulation" .Values.useEmulation "featureGates" .Values.kubevirt.featureGates }}
{{- $configuration := dict "developerConfiguration" $developer }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
configuration:
  {{- mergeOverwrite $configuration (deepCopy .Values.kubevirt.configuration) | toYaml | nindent 2 }}
{{- end }}
