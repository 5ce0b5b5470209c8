#include "stagecraft/schedules/lowering/lowering.h"
