#include "engine/run/train/watchdog.h"

#include "test/support/catch.h"

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>

using namespace stagecraft;

namespace {

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

}  // namespace

TEST_CASE("a host that sits in one call is told of, with its action", "[watchdog]") {
  Pulse pulse;
  std::promise<std::string> told;
  Watchdog watchdog(pulse, Seconds{0.5}, [&](const std::string& what) { told.set_value(what); });
  const Action action{.op = Op::forward, .stage = StageId{1}, .micro_batch = MicroBatch{3}};
  const Watched watched(&watchdog);
  pulse.beat(action);
  auto heard = told.get_future();
  REQUIRE(heard.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  const std::string what = heard.get();
  INFO(what);
  CHECK(what.find("in one call for more than 0.5 s") != std::string::npos);
  CHECK(what.find("forward of micro-batch 3 on stage 1") != std::string::npos);
}

TEST_CASE("a host that beats, or need not, is left alone", "[watchdog]") {
  Pulse pulse;
  std::atomic<int> told = 0;
  Watchdog watchdog(pulse, Seconds{3}, [&](const std::string&) { ++told; });
  {
    const Watched watched(&watchdog);
    for (int k = 0; k < 20; ++k) {
      pulse.beat();
      sleep(0.2);
    }
  }
  sleep(3.6);  // off
  CHECK(told == 0);
}
