#include "engine/core/deferred_reports.h"

#include "base/error.h"

namespace stagecraft {

void DeferredReports::add(const StepReport& step, const at::Tensor& loss, const Report& report,
                          LateNorm norm) {
  entries_.push_back({step, AsyncScalars(loss), report, std::move(norm)});
  while (!entries_.empty() && (entries_.size() > 1 || entries_.front().arrived())) deliver_oldest();
}

void DeferredReports::deliver_all() {
  while (!entries_.empty()) deliver_oldest();
}

void DeferredReports::deliver_oldest() {
  Entry& oldest = entries_.front();
  oldest.loss.await(meanwhile_);
  oldest.step.loss = oldest.loss[0];
  oldest.step.correct = oldest.loss[1];
  for (std::int64_t i = 2; i < oldest.loss.size(); ++i) oldest.step.terms.push_back(oldest.loss[i]);
  if (oldest.norm != nullptr) {
    STAGECRAFT_CHECK(oldest.norm->has_value(), "a step's norm is heard before its report");
    oldest.step.gradient_norm = *oldest.norm;
  }
  oldest.report(oldest.step);
  entries_.pop_front();
}

}  // namespace stagecraft
