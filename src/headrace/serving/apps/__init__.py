"""Apps in service: functions of users that call modules, one deadline for the whole.

api            how an app is written; files loads it
request        one request of an app; runtime all of them
"""
