#pragma once

// All of the component `planner`: programs, the proof, the simulator, schedules, plans and the command line.

#include "base/error.h"
#include "base/registry.h"
#include "cli/command_line.h"
#include "partitioner/search/planner.h"
#include "schedules/checker/checker.h"
#include "schedules/generators/assembly.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/pictures/svg.h"
#include "schedules/pictures/text.h"
#include "schedules/simulator/simulator.h"
