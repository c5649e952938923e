"""The only writes to facts. Each takes the subject's row first, so that the writes to
one subject follow one another, and leaves a revision and an audit entry.
"""

from memory_app.services.burying import FORGOTTEN, bury, subject_hash
from memory_app.services.remembering import (
    promote_fact,
    remember,
    remember_all,
    supersede,
)
from memory_app.services.reviewing import approve, correct, expire_facts, reject
from memory_app.services.told import NewFact, Remembered
from memory_app.services.writing import (
    change,
    get_fact,
    lock_fact,
    lock_subject,
    tracked,
)

__all__ = [
    "FORGOTTEN",
    "NewFact",
    "Remembered",
    "approve",
    "bury",
    "change",
    "correct",
    "expire_facts",
    "get_fact",
    "lock_fact",
    "lock_subject",
    "promote_fact",
    "reject",
    "remember",
    "remember_all",
    "subject_hash",
    "supersede",
    "tracked",
]
