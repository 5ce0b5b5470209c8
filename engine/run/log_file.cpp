#include "stagecraft/engine/run/log_file.h"

#include "stagecraft/base/files.h"
#include "stagecraft/base/printable.h"

#include <fmt/format.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>

namespace stagecraft {
namespace {

class StorageSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit StorageSink(StoredFilePtr file) : file_(std::move(file)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    (void)write_all(*file_, printable({line.data(), line.size()}));
  }
  void flush_() override {}

 private:
  StoredFilePtr file_;
};

}  // namespace

std::shared_ptr<spdlog::logger> open_log(const std::string& path, const std::string& name) {
  return std::make_shared<spdlog::logger>(name, std::make_shared<StorageSink>(open_to_append(path)));
}

}  // namespace stagecraft
