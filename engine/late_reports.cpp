#include "engine/late_reports.h"

namespace stagecraft {

void LateReports::add(const StepReport& step, const at::Tensor& loss, const Report& report) {
  entries_.push_back({step, LateNumbers(loss), report});
  while (!entries_.empty() && (entries_.size() > 1 || entries_.front().loss.arrived())) deliver_oldest();
}

void LateReports::deliver_all() {
  while (!entries_.empty()) deliver_oldest();
}

void LateReports::deliver_oldest() {
  Entry& oldest = entries_.front();
  oldest.loss.await(meanwhile_);
  oldest.step.loss = oldest.loss[0];
  oldest.step.correct = oldest.loss[1];
  oldest.report(oldest.step);
  entries_.pop_front();
}

}  // namespace stagecraft
