def write(d): print("r")
