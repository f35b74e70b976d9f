"""Whatever is given to Headrace, it answers or refuses: random mutants of files and of requests.

mutate     documents as plain values, and bytes, with something changed
corpus     valid files to begin with
files      one mutant of a file through reading, verifying, simulating and planning
judge      whether a plan that `verify` accepted really keeps what it says
problems   one random problem through every planner that may be asked, exact ones against others
protocol   one sequence of HTTP bytes to the gateway, on fakes
run        many of both, in several processes, bounded in time: `make fuzz`
"""
