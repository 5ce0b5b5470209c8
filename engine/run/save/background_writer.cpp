#include "engine/run/save/background_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <poll.h>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <utility>

namespace stagecraft {
namespace {

constexpr std::size_t kScreen = 4096;  ///< bytes

std::int64_t lines_of(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

/// 0, or the errno.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {  // somebody made it non-blocking
      pollfd ready{descriptor, POLLOUT, 0};
      (void)::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

struct BackgroundWriter::State {
  struct Item {
    int descriptor = -1;
    std::string text;
    std::int64_t lines = 0;  ///< that are missing where this is not written
  };

  struct Stream {
    std::int64_t left_out = 0;  ///< lines, since the last one that was written
    bool broken = false;        ///< a write has failed
  };

  State(Trouble say, std::size_t most) : trouble(std::move(say)), most_waiting(most) {}

  void add(Item item) {
    const std::scoped_lock lock(mutex);
    Stream& stream = streams[item.descriptor];
    if (stream.left_out > 0 && waiting == 0) {
      const std::int64_t lines = std::exchange(stream.left_out, 0);
      push({item.descriptor, fmt::format("({} lines are missing here: nobody read them)\n", lines), lines});
    }
    // Behind a gap nothing is taken until the gap can be told.
    if (stream.left_out > 0 || (waiting > 0 && waiting + item.text.size() > most_waiting)) {
      stream.left_out += item.lines;
      return;
    }
    push(std::move(item));
  }

  void push(Item item) {  // under the lock
    waiting += item.text.size();
    items.push_back(std::move(item));
    changed.notify_all();
  }

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return closed || !items.empty(); });
      if (items.empty()) return;
      const Item item = std::move(items.front());
      items.pop_front();
      lock.unlock();
      const int error = write_all(item.descriptor, item.text);
      lock.lock();
      waiting -= item.text.size();
      if (error != 0) failed(item, error);
      changed.notify_all();
    }
  }

  void failed(const Item& item, int error) {  // under the lock
    Stream& stream = streams[item.descriptor];
    stream.left_out += item.lines;
    if (std::exchange(stream.broken, true) || !trouble || item.descriptor == STDERR_FILENO) return;
    const std::string text = trouble(item.descriptor, error);
    if (!text.empty()) push({STDERR_FILENO, text, lines_of(text)});
  }

  const Trouble trouble;
  const std::size_t most_waiting;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Item> items;
  std::size_t waiting = 0;  ///< bytes in `items` and in the write under way
  std::map<int, Stream> streams;
  bool closed = false;
};

BackgroundWriter::BackgroundWriter(Trouble trouble, std::size_t most_waiting)
    : state_(std::make_shared<State>(std::move(trouble), most_waiting)) {
  std::thread([state = state_] { state->run(); }).detach();
}

BackgroundWriter::~BackgroundWriter() {
  flush();
  const std::scoped_lock lock(state_->mutex);
  state_->closed = true;
  state_->changed.notify_all();
}

void BackgroundWriter::write(int descriptor, std::string text) {
  const std::int64_t lines = lines_of(text);
  state_->add({descriptor, std::move(text), lines});
}

void BackgroundWriter::draw(int descriptor, std::string text) {
  {
    const std::scoped_lock lock(state_->mutex);
    if (state_->waiting > kScreen) return;
  }
  state_->add({descriptor, std::move(text), 0});
}

bool BackgroundWriter::flush(Seconds patience) {
  std::unique_lock lock(state_->mutex);
  return state_->changed.wait_for(lock, std::chrono::duration<double>(patience.value),
                                  [&] { return state_->waiting == 0; });
}

}  // namespace stagecraft
