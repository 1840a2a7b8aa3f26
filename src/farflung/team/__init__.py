"""Server and trainers, and everything that passes between them: messages, ledger, links, clocks, faults."""

from farflung.team.base import Team, absent, require_some
from farflung.team.clock import Clock, FixedCostClock, WallClock
from farflung.team.faults import Fault, FaultPlan
from farflung.team.ledger import Ledger
from farflung.team.link import PROFILES, LinkProfile, parse_profile
from farflung.team.message import EVALUATOR, KINDS, SERVER, TRAINING_KINDS, Message, Reply, Status

__all__ = [
    "EVALUATOR",
    "KINDS",
    "PROFILES",
    "SERVER",
    "TRAINING_KINDS",
    "Clock",
    "Fault",
    "FaultPlan",
    "FixedCostClock",
    "Ledger",
    "LinkProfile",
    "Message",
    "Reply",
    "Status",
    "Team",
    "WallClock",
    "absent",
    "parse_profile",
    "require_some",
]
