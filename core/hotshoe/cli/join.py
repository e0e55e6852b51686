"""`hotshoe join`: have ranks of an engine here that another host starts."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from hotshoe.config import EngineConfig
from hotshoe.engine.ranks.agent import join_engine
from hotshoe.engine.wire.handshake import read_secret

DEFAULTS = EngineConfig()


class Join:
    """See `hotshoe.cli.command.Command`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--node-rank",
            type=int,
            metavar="N",
            required=True,
            help="number of this host, 1 or above; the engine's own is 0",
        )
        parser.add_argument(
            "--master-addr", metavar="TEXT", required=True, help="address of the engine's host"
        )
        parser.add_argument(
            "--master-port",
            type=int,
            metavar="N",
            default=DEFAULTS.master_port,
            help=f"port that belongs to it (default: {DEFAULTS.master_port})",
        )
        parser.add_argument(
            "--cluster-secret-file",
            metavar="TEXT",
            required=True,
            help="file of the secret, the same as the engine's",
        )
        parser.add_argument(
            "--load-timeout-s",
            type=float,
            metavar="X",
            default=DEFAULTS.load_timeout_s,
            help=f"seconds to wait for the engine (default: {DEFAULTS.load_timeout_s:g})",
        )

    def run(self, args: Namespace) -> int:
        secret = read_secret(args.cluster_secret_file)
        place = (args.master_addr, args.master_port)
        join_engine(*place, secret, args.node_rank, args.load_timeout_s)
        return 0
