#pragma once

// The settings of everything built in, for tests that write configs in C++.

#include "stagecraft/models/captured/captured_layer.h"
#include "stagecraft/models/families/captured.h"
#include "stagecraft/models/families/convnet.h"
#include "stagecraft/models/families/gpt.h"
#include "stagecraft/models/families/mlp.h"
#include "stagecraft/models/families/sequential.h"
#include "stagecraft/models/layers/activation.h"
#include "stagecraft/models/layers/attention.h"
#include "stagecraft/models/layers/batch_norm.h"
#include "stagecraft/models/layers/conv2d.h"
#include "stagecraft/models/layers/delay.h"
#include "stagecraft/models/layers/dropout.h"
#include "stagecraft/models/layers/embedding.h"
#include "stagecraft/models/layers/feed_forward.h"
#include "stagecraft/models/layers/flatten.h"
#include "stagecraft/models/layers/layer_norm.h"
#include "stagecraft/models/layers/linear.h"
#include "stagecraft/models/layers/max_pool.h"
#include "stagecraft/models/losses/cross_entropy.h"
#include "stagecraft/models/losses/mean_squared_error.h"
