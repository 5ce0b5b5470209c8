#include "schedules/send_window.h"

#include <algorithm>

namespace stagecraft {

std::optional<Tag> SendWindow::start(const Tag& tag) {
  auto& tags = boundary(tag).tags;
  std::optional<Tag> oldest;
  if (tags.size() == most_) {
    oldest = tags.front();
    tags.erase(tags.begin());
  }
  tags.push_back(tag);
  started_.push_back(tag);
  return oldest;
}

bool SendWindow::finish(const Tag& tag) {
  auto& tags = boundary(tag).tags;
  const auto found = std::find(tags.begin(), tags.end(), tag);
  if (found == tags.end()) return false;
  tags.erase(found);
  return true;
}

std::vector<Tag> SendWindow::drain() {
  std::vector<Tag> left;
  for (const Tag& tag : started_) {
    if (finish(tag)) left.push_back(tag);
  }
  return left;
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
