"""Studies: a configuration in, a finding out. The only place where everything meets.

Each is imported from its own file, so that one study does not import the others.
"""
