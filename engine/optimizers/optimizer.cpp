#include "engine/optimizers/optimizer.h"

#include "engine/optimizers/adafactor.h"
#include "engine/optimizers/adam.h"
#include "engine/optimizers/lion.h"
#include "engine/optimizers/muon.h"
#include "engine/optimizers/nadam.h"
#include "engine/optimizers/sgd.h"

#include <c10/util/accumulate.h>

namespace stagecraft {

std::int64_t ParameterSite::elements() const { return c10::multiply_integers(shape); }

Registry<OptimizerKind>& OptimizerKind::registry() {
  // Never destroyed, and in the schema's order.
  static auto& all = *new Registry<OptimizerKind>([](Registry<OptimizerKind>& added) {
    const auto make = [](const auto& settings, Site) { return make_optimizer(settings); };
    added.add<SgdConfig>("SGD", make);
    added.add<SgdWConfig>("SGDW", make);
    added.add<AdamConfig>("Adam", make);
    added.add<AdamWConfig>("AdamW", make);
    added.add<NAdamConfig>("NAdam", make);
    added.add<LionConfig>("Lion", make);
    added.add<AdafactorConfig>("Adafactor", make);
    added.add<MuonConfig>("Muon", make);
  });
  return all;
}

}  // namespace stagecraft
