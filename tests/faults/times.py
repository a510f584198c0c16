"""How long things take in the fault tests: the design's times, or the same in short.

`LESSOR_FAULTS_REAL_TIME=1` runs them as the design has them (90 s quiet, 15 min lost); a run then takes hours.
"""

import os

REAL_TIME = os.environ.get("LESSOR_FAULTS_REAL_TIME") == "1"
HEARTBEAT_S, PULL_S = (10, 30) if REAL_TIME else (1, 3)
QUIET_S, SILENCE_S, GRACE_S = (90, 900, 90) if REAL_TIME else (6, 45, 3)
SWEEP_S = 15  # beat looks for silence this often, in both

# A node out of reach for "2 minutes": long enough to be quiet, not to be lost. Then for "20 minutes".
SHORT_CUT_S = 120 if REAL_TIME else QUIET_S + 4
LOST_WITHIN_S = SILENCE_S + GRACE_S + 2 * SWEEP_S + 15
PORTAL_AWAY_S = 300 if REAL_TIME else 12

SETTINGS = {
    "HEARTBEAT_S": str(HEARTBEAT_S),
    "PULL_S": str(PULL_S),
    "QUIET_AFTER_S": str(QUIET_S),
    "SILENCE_S": str(SILENCE_S),
    "BOOT_GRACE_S": str(GRACE_S),
}
