"""Other plans while serving: who asks for one, when, and how it is vetted.

changeover     everything that can make a server change its plan ends here
vetting        reads and verifies a plan in a process of its own
process_beside starts that process, and the one that plans anew
load_watch, rate_watch, rate_estimate, plan_watch, replan_backoff   whether the load is still the
               planned one
"""
