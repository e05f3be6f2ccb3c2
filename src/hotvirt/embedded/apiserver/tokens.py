"""Tokens of service accounts (`kubectl create token`): in memory; they end with their account or with us."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from typing import Final

import msgspec

from .call import User
from .store import Store

SHORTEST: Final = 600
LONGEST: Final = 1 << 32
DEFAULT_SECONDS: Final = 3600


@dataclass(frozen=True)
class Issued:
    user: User
    account: tuple[str, str]
    expires: float


class IssuedTokens:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._issued: dict[bytes, Issued] = {}

    def issue(self, namespace: str, name: str, uid: str, seconds: int) -> str:
        self._forget_old()
        token = secrets.token_urlsafe(32)
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
        user = User(f"system:serviceaccount:{namespace}:{name}", groups, uid)
        self._issued[_digest(token)] = Issued(user, (namespace, name), time.time() + seconds)
        return token

    def user_of_token(self, token: str) -> User | None:
        issued = self._issued.get(_digest(token))
        if issued is None or issued.expires < time.time():
            return None
        entry = self._store.get(("serviceaccounts", *issued.account))
        if entry is None or msgspec.json.decode(entry.data)["metadata"]["uid"] != issued.user.uid:
            return None
        return issued.user

    def _forget_old(self) -> None:
        now = time.time()
        self._issued = {digest: one for digest, one in self._issued.items() if one.expires >= now}


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
