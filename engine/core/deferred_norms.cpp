#include "engine/core/deferred_norms.h"

namespace stagecraft {

void DeferredNorms::add(const at::Tensor& squares, Heard heard) {
  entries_.push_back({AsyncScalars(squares), squares.numel(), std::move(heard)});
}

void DeferredNorms::hear_all() {
  while (!entries_.empty()) {
    entries_.front().squares.await(meanwhile_);
    const Entry oldest = std::move(entries_.front());
    entries_.pop_front();
    std::vector<double> squares;
    for (std::int64_t i = 0; i < oldest.count; ++i) squares.push_back(oldest.squares[i]);
    oldest.heard(squares);
  }
}

}  // namespace stagecraft
