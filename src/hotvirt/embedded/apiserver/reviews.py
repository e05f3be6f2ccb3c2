"""Reviews: questions about users and rights. They are answered at once and never stored."""

from __future__ import annotations

from typing import Any

from hotvirt.api.meta import now

from .auth import DISCOVERY, SELF_REVIEWS, AllTokens, allowed_everything, may, may_read_path
from .body import check_type, normalise, read_object
from .call import Call, Reply, User, json_reply
from .errors import invalid, invalid_value

Object = dict[str, Any]


class Reviews:
    def __init__(self) -> None:
        self.tokens: AllTokens | None = None

    async def create(self, call: Call) -> Reply:
        sent, problems = await read_object(call, call.kind)
        check_type(call.kind, sent)
        review = normalise(call, call.kind, sent, problems)
        answer = {
            "selfsubjectaccessreviews": self._own_access,
            "selfsubjectrulesreviews": self._own_rules,
            "subjectaccessreviews": self._access,
            "selfsubjectreviews": self._who,
            "tokenreviews": self._token,
        }[call.kind.plural]
        if call.kind.plural == "selfsubjectreviews":
            review["metadata"]["creationTimestamp"] = now()
        review["status"] = answer(call, review.get("spec") or {})
        return json_reply(review, 201)

    def _own_access(self, call: Call, spec: Object) -> Object:
        return _decision(call.user, spec)

    def _access(self, call: Call, spec: Object) -> Object:
        groups = tuple(spec.get("groups") or ())
        return _decision(User(spec.get("user", ""), groups), spec)

    def _own_rules(self, call: Call, spec: Object) -> Object:
        if allowed_everything(call.user):
            every = ["*"]
            resources: list[Object] = [{"verbs": every, "apiGroups": every, "resources": every}]
            paths: list[Object] = [{"verbs": every, "nonResourceURLs": every}]
        else:
            resources = [
                {
                    "verbs": ["create"],
                    "apiGroups": ["authorization.k8s.io", "authentication.k8s.io"],
                    "resources": sorted(SELF_REVIEWS),
                }
            ]
            paths = [{"verbs": ["get"], "nonResourceURLs": sorted({f"{one}*" for one in DISCOVERY})}]
        return {"resourceRules": resources, "nonResourceRules": paths, "incomplete": False}

    def _who(self, call: Call, spec: Object) -> Object:
        return {"userInfo": _user_info(call.user)}

    def _token(self, call: Call, spec: Object) -> Object:
        user = self.tokens.user_of_token(spec.get("token", "")) if self.tokens else None
        if user is None:
            return {"user": {}, "error": "invalid bearer token"}
        return {"authenticated": True, "user": _user_info(user)}


def _user_info(user: User) -> Object:
    info: Object = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        info["uid"] = user.uid
    if user.extra:
        info["extra"] = user.extra
    return info


def _decision(user: User, spec: Object) -> Object:
    path = spec.get("nonResourceAttributes")
    if (path is None) == (spec.get("resourceAttributes") is None):
        why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        errors = [invalid_value("spec.resourceAttributes", spec.get("resourceAttributes"), why)]
        raise invalid("authorization.k8s.io", "SelfSubjectAccessReview", "", errors)
    if path is not None:
        allowed = may_read_path(user, path.get("path", ""))
    else:
        wanted = spec.get("resourceAttributes") or {}
        allowed = may(user, wanted.get("verb", ""), wanted.get("group", ""), wanted.get("resource", ""))
    return {"allowed": allowed}
