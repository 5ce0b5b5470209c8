#include "schedules/send_window.h"

#include <algorithm>

namespace stagecraft {

std::optional<Tag> SendWindow::start(const Tag& tag) {
  auto& sent = boundary(tag).sent;
  std::optional<Tag> oldest;
  if (sent.size() == most_) {
    oldest = sent.front().tag;
    sent.erase(sent.begin());
  }
  sent.push_back({started_++, tag});
  return oldest;
}

bool SendWindow::finish(const Tag& tag) {
  auto& sent = boundary(tag).sent;
  const auto found = std::find_if(sent.begin(), sent.end(), [&](const Sent& one) { return one.tag == tag; });
  if (found == sent.end()) return false;
  sent.erase(found);
  return true;
}

std::vector<Tag> SendWindow::drain() {
  std::vector<Sent> left;
  for (Boundary& known : boundaries_) {
    left.insert(left.end(), known.sent.begin(), known.sent.end());
    known.sent.clear();
  }
  std::sort(left.begin(), left.end(), [](const Sent& a, const Sent& b) { return a.nth < b.nth; });
  std::vector<Tag> tags;
  for (const Sent& one : left) tags.push_back(one.tag);
  return tags;
}

SendWindow::Boundary& SendWindow::boundary(const Tag& tag) {
  for (Boundary& known : boundaries_) {
    if (known.payload == tag.payload && known.from == tag.from && known.to == tag.to &&
        known.index == tag.index)
      return known;
  }
  return boundaries_.emplace_back(Boundary{tag.payload, tag.from, tag.to, tag.index, {}});
}

}  // namespace stagecraft
