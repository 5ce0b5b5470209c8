#include "stagecraft/engine/deferred_reports.h"

namespace stagecraft {

void DeferredReports::add(const StepReport& step, const at::Tensor& loss, const Report& report) {
  entries_.push_back({step, AsyncScalars(loss), report});
  while (!entries_.empty() && (entries_.size() > 1 || entries_.front().loss.arrived())) deliver_oldest();
}

void DeferredReports::deliver_all() {
  while (!entries_.empty()) deliver_oldest();
}

void DeferredReports::deliver_oldest() {
  Entry& oldest = entries_.front();
  oldest.loss.await(meanwhile_);
  oldest.step.loss = oldest.loss[0];
  oldest.step.correct = oldest.loss[1];
  oldest.report(oldest.step);
  entries_.pop_front();
}

}  // namespace stagecraft
