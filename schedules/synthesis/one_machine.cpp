#include "schedules/synthesis/one_machine.h"

#include <algorithm>
#include <queue>
#include <utility>

namespace stagecraft::synthesis {

double preemptive_makespan(std::vector<Job> jobs) {
  std::ranges::sort(jobs, {}, &Job::head);
  std::priority_queue<std::pair<double, double>> waiting;  // tail, seconds left
  double now = 0;
  double makespan = 0;
  std::size_t next = 0;
  while (next < jobs.size() || !waiting.empty()) {
    if (waiting.empty()) now = std::max(now, jobs[next].head);
    for (; next < jobs.size() && jobs[next].head <= now; ++next)
      waiting.emplace(jobs[next].tail, jobs[next].seconds);
    const auto [tail, left] = waiting.top();
    waiting.pop();
    const double until = next < jobs.size() ? std::min(jobs[next].head, now + left) : now + left;
    if (until < now + left) {
      waiting.emplace(tail, left - (until - now));
    } else {
      makespan = std::max(makespan, until + tail);
    }
    now = until;
  }
  return makespan;
}

double earliest_end(std::vector<Job> jobs) {
  std::ranges::sort(jobs, {}, &Job::head);
  double now = 0;
  for (const Job& job : jobs) now = std::max(now, job.head) + job.seconds;
  return now;
}

double least_tail(std::vector<Job> jobs) {
  for (Job& job : jobs) std::swap(job.head, job.tail);
  return earliest_end(std::move(jobs));
}

}  // namespace stagecraft::synthesis
