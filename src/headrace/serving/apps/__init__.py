"""Apps in service: functions of users that call modules, one deadline for the whole.

api            how an app is written; files loads it
runtime        all requests in the gateway; request one of them; error_log what the log gets
host           the apps' process, seen from the gateway; frames what the two say to each other
process        that process: runner has the functions, threads their work aside; watchdog sees who
               holds up the others
held           what the log gets of that
"""
