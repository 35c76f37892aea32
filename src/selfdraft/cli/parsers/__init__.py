"""What each command takes, and its help: argparse alone, so that `--help` answers at once.

A command's work is in cli/NAME.py, which is imported when it runs.
"""

from .learn import add_calibrate, add_profile
from .measure import add_bench, add_report, add_reproduce
from .online import add_chat, add_serve
from .use import add_generate, add_info, add_pull, add_verify

PARSERS = {
    "generate": add_generate,
    "chat": add_chat,
    "serve": add_serve,
    "verify": add_verify,
    "info": add_info,
    "pull": add_pull,
    "calibrate": add_calibrate,
    "profile": add_profile,
    "bench": add_bench,
    "reproduce": add_reproduce,
    "report": add_report,
}
"""In the order of the help."""
