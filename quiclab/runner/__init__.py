"""Places a run can take place in, behind one seam (`quiclab.runner.base`)."""
