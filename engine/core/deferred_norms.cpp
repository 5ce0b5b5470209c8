#include "engine/core/deferred_norms.h"

namespace stagecraft {

void DeferredNorms::add(const at::Tensor& norms, Heard heard) {
  entries_.push_back({AsyncScalars(norms), norms.numel(), std::move(heard)});
}

void DeferredNorms::hear_all() {
  while (!entries_.empty()) {
    entries_.front().norms.await(meanwhile_);
    const Entry oldest = std::move(entries_.front());
    entries_.pop_front();
    std::vector<double> norms;
    for (std::int64_t i = 0; i < oldest.count; ++i) norms.push_back(oldest.norms[i]);
    oldest.heard(norms);
  }
}

}  // namespace stagecraft
