#include "engine/records/watch/server.h"

#include "base/error.h"
#include "engine/records/view/page.h"

#include <fmt/format.h>

#include <charconv>
#include <chrono>
#include <cstring>
#include <httplib/httplib.h>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

namespace stagecraft {
namespace {

using Clock = std::chrono::steady_clock;

/// Of the history, per request: a long run's comes in over several of them, and none takes long.
constexpr std::size_t kMostBytes = std::size_t{1} << 20U;
/// Between two looks at the disk, however many pages ask.
constexpr std::chrono::milliseconds kLookEvery{400};
constexpr int kForbidden = 403;

std::string random_token() {
  std::random_device random;  // the kernel's
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

/// "3,17": the versions that a page has.
std::vector<std::int64_t> versions_of(const std::string& text) {
  std::vector<std::int64_t> versions;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    std::int64_t version = -1;
    const auto [rest, error] = std::from_chars(at, end, version);
    if (error != std::errc{}) break;
    versions.push_back(version);
    at = rest + 1;
  }
  return versions;
}

}  // namespace

bool same_secret(const std::string& secret, const std::string& given) {
  unsigned different = secret.size() == given.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    different |= static_cast<unsigned char>(given[i] ^ secret[i % secret.size()]);
  }
  return different == 0;
}

class WatchServer::Serving {
 public:
  Serving(std::vector<RunView> runs, int port) : runs_(std::move(runs)), token_(random_token()) {
    server_.set_payload_max_length(1024);
    server_.new_task_queue = [] { return new httplib::ThreadPool(4); };
    // The library's default shares a port with other processes that ask for it, which would get its requests.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      (void)setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    const int got = port == 0                                 ? server_.bind_to_any_port("127.0.0.1")
                    : server_.bind_to_port("127.0.0.1", port) ? port
                                                              : -1;
    if (got <= 0) {
      throw InputError(
          fmt::format("--port {}: cannot be used on 127.0.0.1 ({}); choose another, or none for one "
                      "that is free",
                      port, std::strerror(errno)));
    }
    port_ = got;
    set_up();
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    server_.wait_until_ready();
  }
  ~Serving() {
    server_.stop();
    thread_.join();
  }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

  [[nodiscard]] std::string address() const { return fmt::format("http://127.0.0.1:{}/{}/", port_, token_); }

 private:
  void set_up() {
    server_.set_default_headers({{"Cache-Control", "no-store"},
                                 {"X-Content-Type-Options", "nosniff"},
                                 {"Referrer-Policy", "no-referrer"},
                                 {"Cross-Origin-Resource-Policy", "same-origin"},
                                 {"Content-Security-Policy", "frame-ancestors 'none'"}});
    server_.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      if (permitted(request)) return httplib::Server::HandlerResponse::Unhandled;
      response.status = kForbidden;
      response.set_content(
          "This address is not complete, or not of this server: take the one that `stagecraft watch` "
          "printed.\n",
          "text/plain");
      return httplib::Server::HandlerResponse::Handled;
    });
    server_.Get(R"(/[^/]*/)", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(page_of(document({})), "text/html; charset=utf-8");
    });
    server_.Get(R"(/[^/]*/data)", [this](const httplib::Request& request, httplib::Response& response) {
      response.set_content(document_text(document(versions_of(request.get_param_value("have")))),
                           "application/json");
    });
  }

  [[nodiscard]] bool permitted(const httplib::Request& request) const {
    const std::string host = request.get_header_value("Host");
    if (host != fmt::format("127.0.0.1:{}", port_) && host != fmt::format("localhost:{}", port_))
      return false;
    const std::size_t end = request.path.find('/', 1);
    return end != std::string::npos && same_secret(token_, request.path.substr(1, end - 1));
  }

  [[nodiscard]] Json document(const std::vector<std::int64_t>& have) {
    const std::scoped_lock lock(mutex_);
    if (const auto now = Clock::now(); !looked_ || now - *looked_ >= kLookEvery) {
      looked_ = now;
      for (RunView& run : runs_) (void)run.follow(kMostBytes);
    }
    return document_of(runs_, /*live=*/true, have);
  }

  std::mutex mutex_;  ///< of the runs
  std::vector<RunView> runs_;
  std::optional<Clock::time_point> looked_;
  std::string token_;
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

WatchServer::WatchServer(std::vector<RunView> runs, int port)
    : serving_(std::make_unique<Serving>(std::move(runs), port)), address_(serving_->address()) {}

WatchServer::~WatchServer() = default;

}  // namespace stagecraft
