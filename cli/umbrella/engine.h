#pragma once

// All of the component `engine`: the planner's, and the registries of what a training run is made of.

#include "stagecraft/engine/optimizers/optimizer.h"
#include "stagecraft/engine/settings/learning_rate.h"
#include "stagecraft/models/data/dataset.h"
#include "stagecraft/models/dropout.h"
#include "stagecraft/models/families/registry.h"
#include "stagecraft/models/layers/functional.h"
#include "stagecraft/models/layers/registry.h"
#include "stagecraft/models/loss.h"
#include "stagecraft/models/losses/loss_factor.h"
#include "stagecraft/planner.h"
