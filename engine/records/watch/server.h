#pragma once

// Serves the page of some runs to whoever has the address, on 127.0.0.1 alone. The address holds 128 random
// bits, without which every request is refused; so is one whose Host is another name for this machine, as a
// page of elsewhere would send it that had its own name rebound to 127.0.0.1. It reads run directories and
// writes nothing.

#include "engine/records/view/run_view.h"

#include <memory>
#include <string>
#include <vector>

namespace stagecraft {

class WatchServer {
 public:
  /// Requests are served on threads of its own from here on. `port` 0: any that is free. Throws InputError
  /// where the port cannot be had.
  WatchServer(std::vector<RunView> runs, int port);
  ~WatchServer();  ///< ends what is under way
  WatchServer(const WatchServer&) = delete;
  WatchServer& operator=(const WatchServer&) = delete;

  [[nodiscard]] const std::string& address() const {
    return address_;
  }  ///< "http://127.0.0.1:40123/<token>/"

 private:
  class Serving;
  std::unique_ptr<Serving> serving_;
  std::string address_;
};

/// Whether both are the same, in a time that goes by the length of `given` alone.
[[nodiscard]] bool same_secret(const std::string& secret, const std::string& given);

}  // namespace stagecraft
