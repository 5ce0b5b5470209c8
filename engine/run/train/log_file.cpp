#include "engine/run/train/log_file.h"

#include "base/files.h"
#include "base/printable.h"

#include <fmt/format.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace stagecraft {
namespace {

/// Shared by the sink and the thread that writes, which may outlive it.
struct Lines {
  std::mutex mutex;
  std::condition_variable changed;
  StoredFilePtr file;
  std::string waiting;
  bool writing = false, closed = false;

  /// Lines that cannot be written are lost, also where another start has taken the directory.
  void put(const std::string& text) noexcept {
    try {
      (void)write_all(*file, text);
    } catch (...) {  // what matters of it comes with the next checkpoint
    }
  }
  void write_all_that_comes() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return closed || !waiting.empty(); });
      if (waiting.empty()) break;
      const std::string text = std::exchange(waiting, "");
      writing = true;
      lock.unlock();
      put(text);
      lock.lock();
      writing = false;
      changed.notify_all();
    }
    file.reset();
    changed.notify_all();
  }
};

class StorageSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit StorageSink(StoredFilePtr file) : lines_(std::make_shared<Lines>()) {
    lines_->file = std::move(file);
    try {
      std::thread([lines = lines_] { lines->write_all_that_comes(); }).detach();
    } catch (const std::system_error&) {
      has_thread_ = false;  // pids.max: rather lines that may hang than none
    }
  }
  ~StorageSink() override {
    if (!has_thread_) return;
    std::unique_lock lock(lines_->mutex);
    lines_->closed = true;
    lines_->changed.notify_all();
    wait(lock, [this] { return lines_->file == nullptr; });
  }
  StorageSink(const StorageSink&) = delete;
  StorageSink& operator=(const StorageSink&) = delete;

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    constexpr std::size_t kMostWaiting = std::size_t{1} << 20U;
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    const std::string text = printable({line.data(), line.size()});
    if (!has_thread_) {
      lines_->put(text);
      return;
    }
    const std::scoped_lock lock(lines_->mutex);
    if (lines_->waiting.size() < kMostWaiting) lines_->waiting += text;
    lines_->changed.notify_all();
  }
  void flush_() override {
    std::unique_lock lock(lines_->mutex);
    wait(lock, [this] { return lines_->waiting.empty() && !lines_->writing; });
  }

 private:
  template <class Done>
  void wait(std::unique_lock<std::mutex>& lock, const Done& done) {
    lines_->changed.wait_for(lock, std::chrono::duration<double>(kLogPatience.value), done);
  }

  std::shared_ptr<Lines> lines_;
  bool has_thread_ = true;
};

}  // namespace

std::shared_ptr<spdlog::logger> open_log(const std::string& path, const std::string& name) {
  return std::make_shared<spdlog::logger>(name, std::make_shared<StorageSink>(open_to_append(path)));
}

}  // namespace stagecraft
