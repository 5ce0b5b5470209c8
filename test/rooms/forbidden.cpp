#include "schedules/lowering/lowering.h"
