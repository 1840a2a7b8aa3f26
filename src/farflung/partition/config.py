"""Options of partitioning."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class PartitionConfig(BaseModel):
    """How the graph is cut into parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    by: Literal["random", "mincut", "supernode", "given"] = Field(
        "random",
        description="random: each node to any part; mincut: METIS; supernode: METIS clusters dealt out at "
        "random; given: a column of the graph or a file",
    )
    parts: int | None = Field(4, ge=1, description="number of parts = trainers (>= 1); 'given' takes it from the data")
    clusters: int | None = Field(
        None, ge=1, description="super-nodes for 'supernode'; default min(15000, max(10 * parts, nodes / 16))"
    )
    balance: Literal["nodes", "edges"] = Field("edges", description="what 'mincut' balances over the parts")
    given: str | None = Field(
        None, description="for 'given': name of a node column, or a .npy/.npz file with one integer per node"
    )
    seed: int | None = Field(None, ge=0, description="seed of the partition; default: the run's seed")
