#pragma once

// All of the component `planner`: programs, the proof, the simulator, schedules, plans and the command line.

#include "stagecraft/base/error.h"
#include "stagecraft/base/registry.h"
#include "stagecraft/cli/command_line.h"
#include "stagecraft/partitioner/planner.h"
#include "stagecraft/schedules/checker/checker.h"
#include "stagecraft/schedules/generators/assembly.h"
#include "stagecraft/schedules/generators/registry.h"
#include "stagecraft/schedules/lowering/lowering.h"
#include "stagecraft/schedules/pictures/svg.h"
#include "stagecraft/schedules/pictures/text.h"
#include "stagecraft/schedules/simulator/simulator.h"
