#include "models/layers/registry.h"

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

namespace stagecraft {
namespace {

template <class... Specs>
void add_all(Registry<LayerKind>& all) {
  (all.add<Specs>(Specs::kName,
                  [](const Specs& spec, const LayerSite& site) { return make_layer(spec, site); }),
   ...);
}

}  // namespace

Registry<LayerKind>& LayerKind::registry() {
  // Never destroyed: configs with static storage may name its entries at exit. In the schema's order.
  static auto& all = *new Registry<LayerKind>([](Registry<LayerKind>& added) {
    add_all<LinearSpec, Conv2dSpec, BatchNormSpec, ReluSpec, GeluSpec, MaxPoolSpec, FlattenSpec, DropoutSpec,
            LayerNormSpec, EmbeddingSpec, AttentionSpec, FeedForwardSpec, DelaySpec>(added);
  });
  return all;
}

void describe(Fields& f, LayerSpec& s) {
  f.registered("type", s.layer, "kind of layer");
  f.optional("name", s.name, "in tables and checkpoints; default: type and index");
}

}  // namespace stagecraft
