#pragma once

// The settings of everything built in, for tests that write configs in C++.

#include "models/captured/captured_layer.h"
#include "models/families/captured.h"
#include "models/families/convnet.h"
#include "models/families/gpt.h"
#include "models/families/mlp.h"
#include "models/families/sequential.h"
#include "models/layers/activation.h"
#include "models/layers/attention.h"
#include "models/layers/batch_norm.h"
#include "models/layers/conv2d.h"
#include "models/layers/delay.h"
#include "models/layers/dropout.h"
#include "models/layers/embedding.h"
#include "models/layers/feed_forward.h"
#include "models/layers/flatten.h"
#include "models/layers/layer_norm.h"
#include "models/layers/linear.h"
#include "models/layers/max_pool.h"
#include "models/losses/cross_entropy.h"
#include "models/losses/mean_squared_error.h"
