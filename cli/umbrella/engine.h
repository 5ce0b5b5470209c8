#pragma once

// All of the component `engine`: the planner's, and the registries of what a training run is made of.

#include "engine/optimizers/optimizer.h"
#include "engine/records/settings/learning_rate.h"
#include "models/data/dataset.h"
#include "models/families/registry.h"
#include "models/layers/dropout_masks.h"
#include "models/layers/functional.h"
#include "models/layers/registry.h"
#include "models/losses/loss.h"
#include "models/losses/loss_factor.h"

#include "planner.h"
