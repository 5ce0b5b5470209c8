#include "engine/transport/quiet_thread.h"

#include <csignal>
#include <pthread.h>
#include <utility>

namespace stagecraft::transport {
namespace {

/// The thread that it is made on takes no signals while the object lives; threads begin with what it takes then.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

std::thread quiet_thread(const char* name, std::function<void()> loop) {
  const NoSignals here;
  std::thread thread(std::move(loop));
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace stagecraft::transport
