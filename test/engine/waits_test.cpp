// How long ranks wait for each other, and what they know of each other's processes meanwhile.

#include "engine/transport/waits.h"

#include "base/error.h"
#include "engine/transport/cores.h"
#include "engine/transport/heartbeats/beat.h"
#include "engine/transport/heartbeats/heartbeats.h"
#include "engine/transport/heartbeats/sockets.h"
#include "engine/transport/texts.h"
#include "schedules/program/program_text.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <climits>

#include <chrono>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace stagecraft;
using transport::Heartbeats;
using Life = Sign::Life;
using std::chrono::milliseconds;

namespace {

/// What a test says of the others.
class Told final : public Signs {
 public:
  explicit Told(std::vector<Sign> signs) : signs_(std::move(signs)) {}
  [[nodiscard]] int world() const override { return static_cast<int>(signs_.size()); }
  [[nodiscard]] Sign of(Rank rank) const override { return signs_.at(rank.index()); }
  void show(Phase, bool waits) noexcept override { shown_ = waits; }
  [[nodiscard]] bool shown() const { return shown_; }

 private:
  std::vector<Sign> signs_;
  bool shown_ = false;
};

/// What ends rank 0's wait for rank 1's text, or "" after two seconds.
std::string end_of(const TransportOptions& options, Phase phase, const std::vector<Sign>& signs,
                   const std::function<void(const std::string&)>& note = nullptr, std::int64_t steps = 0) {
  const auto told = std::make_shared<Told>(signs);
  Waits waits(Rank{0}, options, told);
  for (std::int64_t step = 0; step < steps; ++step) waits.step_took(Seconds{0.01});
  waits.enter(phase);
  waits.on_long_wait(note);
  const auto until = std::chrono::steady_clock::now() + milliseconds(2000);
  try {
    Wait wait(waits);
    while (std::chrono::steady_clock::now() < until) {
      wait.check([] { return std::string("broadcast"); });
      std::this_thread::sleep_for(milliseconds(5));
    }
    CHECK(told->shown());
  } catch (const PeerError& error) {
    return error.what();
  }
  CHECK_FALSE(told->shown());
  return "";
}

const Sign kMe{.life = Life::alive, .silence = Seconds{0}};

/// Waits for `holds`, for ten seconds at most.
bool in_time(const std::function<bool()>& holds) {
  for (int turn = 0; turn < 1000; ++turn) {
    if (holds()) return true;
    std::this_thread::sleep_for(milliseconds(10));
  }
  return false;
}

const std::vector<std::string> kHere{"127.0.0.1"};
const transport::HeartbeatTimes kFast{.period = Seconds{0.05}, .silent_after = Seconds{1}};

}  // namespace

TEST_CASE("time in which the process was stopped does not count", "[waits]") {
  const auto start = Stopwatch::Clock::now();
  Stopwatch watch(start);
  CHECK(watch.read(start + milliseconds(300)).value == Approx(0.3));
  CHECK(watch.read(start + milliseconds(900)).value == Approx(0.9));
  CHECK(watch.read(start + std::chrono::hours(10)).value == Approx(1.9));
  CHECK(watch.read(start + std::chrono::hours(10) + milliseconds(100)).value == Approx(2.0));
  watch.restart(start + std::chrono::hours(11));
  CHECK(watch.read(start + std::chrono::hours(11)).value == 0);
}

TEST_CASE("bounds follow the phase, and in a step the plan's prediction", "[waits]") {
  Waits waits(Rank{0},
              {.timeout = Seconds{20}, .start_up_timeout = Seconds{100}, .save_timeout = Seconds{7}});
  CHECK(waits.bound() == Seconds{20});
  waits.expect_step(Seconds{1});
  CHECK(waits.bound() == Seconds{20});
  waits.expect_step(Seconds{3});
  CHECK(waits.bound() == Seconds{30});
  waits.enter(Phase::start_up);
  CHECK(waits.bound() == Seconds{100});
  {
    const InPhase saving(waits, Phase::save);
    CHECK(waits.bound() == Seconds{20});
  }
  CHECK(waits.bound() == Seconds{100});
}

TEST_CASE("a rank that is alive is waited for, and the log hears of it once", "[waits]") {
  std::vector<std::string> notes;
  const Sign saving{.life = Life::alive, .silence = Seconds{0}, .phase = Phase::save};
  CHECK(end_of({.timeout = Seconds{1}, .save_timeout = Seconds{4.4}}, Phase::save, {kMe, saving},
               [&](const std::string& note) { notes.push_back(note); }) == "");
  REQUIRE(notes.size() == 1);
  CHECK(test::says(notes.front(), " s; rank 1 is alive and saves"));
}

TEST_CASE("a wait beyond its bound names its key, and the rank that all wait for", "[waits]") {
  const Sign waits{.life = Life::alive, .silence = Seconds{0}, .phase = Phase::step, .waits = true};
  const Sign works{.life = Life::alive, .silence = Seconds{0}, .phase = Phase::step};
  const TransportOptions options{.timeout = Seconds{0.3}};
  using test::says;
  std::string end = end_of(options, Phase::step, {kMe, waits, works});
  INFO(end);
  CHECK(says(end,
             "rank 0: broadcast, begun 0.3 s ago, is not complete after 0.3 s of waiting "
             "(comms.timeout_s); rank 2 is alive and works on a step"));
  CHECK(
      says(end_of(options, Phase::step, {kMe, waits, waits}), "all other ranks are alive and wait as well"));
  CHECK(says(end_of(options, Phase::step, {kMe, Sign{}, waits}), "hangs, died, or is slower"));
  const Sign silent{.life = Life::silent, .silence = Seconds{5}};
  CHECK(says(end_of(options, Phase::step, {kMe, works, silent}), "rank 2 has not been heard of for 5 s"));
}

TEST_CASE("steps that were measured bound a wait inside one, never above the configured bound", "[waits]") {
  const auto infinite = std::numeric_limits<double>::infinity();
  Waits waits(Rank{0}, {.timeout_steps = 10, .timeout_pause = Seconds{60}});
  for (std::int64_t step = 1; step < Waits::kMeasured; ++step)
    waits.step_took(Seconds{step == 3 ? 2.0 : 0.5});
  CHECK(waits.measured_bound().value == infinite);
  waits.step_took(Seconds{0.5});
  CHECK(waits.measured_bound() == Seconds{80});
  waits.step_took(Seconds{4});  // a straggler allows for more of its kind
  CHECK(waits.measured_bound() == Seconds{100});
  {
    const InPhase saving(waits, Phase::save);
    CHECK(waits.measured_bound().value == infinite);
  }
  Waits off(Rank{0}, {.timeout_steps = 0});
  for (std::int64_t step = 0; step < 2 * Waits::kMeasured; ++step) off.step_took(Seconds{1});
  CHECK(off.measured_bound().value == infinite);
}

TEST_CASE("a rank that is alive and hangs in a step ends a wait long before timeout_s", "[waits]") {
  using test::says;
  const Sign works{.life = Life::alive, .phase = Phase::step};
  const TransportOptions options{.timeout = Seconds{300}, .timeout_steps = 10, .timeout_pause = Seconds{1}};
  const auto end = [&](const std::vector<Sign>& signs, std::int64_t steps, const TransportOptions& its) {
    return end_of(its, Phase::step, signs, nullptr, steps);
  };
  const std::string said = end({kMe, works}, 30, options);
  INFO(said);
  CHECK(says(said,
             " is not complete after 1.1 s of waiting (10 times the slowest of 30 steps, 0.01 s, and 1 s: "
             "comms.timeout_steps and timeout_pause_s); rank 1 is alive and works on a step"));
  CHECK(end({kMe, works}, Waits::kMeasured - 1, options) == "");
  // What has a bound of its own, and what nothing is known of.
  CHECK(end({kMe, works, {.life = Life::alive, .phase = Phase::save}}, 30, options) == "");
  CHECK(end({kMe, works, Sign{}}, 30, options) == "");
  CHECK(end({kMe, works, {.life = Life::silent, .silence = Seconds{9}, .phase = Phase::step}}, 30, options) ==
        "");
  // A machine that is cut off, in a step and in a save.
  const Sign cut_off{.life = Life::silent, .silence = Seconds{11}, .phase = Phase::step};
  CHECK(says(end({kMe, works, cut_off}, 30, options),
             "rank 2 has not been heard of for 11 s (10 times the slowest of 30 steps, 0.01 s, and 1 s: "));
  CHECK(end({kMe, works, cut_off}, 0, options) == "");
  CHECK(end({kMe, works, {.life = Life::silent, .silence = Seconds{11}, .phase = Phase::save}}, 30,
            options) == "");
  // The configured bound is the upper end.
  TransportOptions shorter = options;
  shorter.timeout = Seconds{0.5};
  CHECK(says(end({kMe, works}, 30, shorter), "after 0.5 s of waiting (comms.timeout_s)"));
}

TEST_CASE("a rank that is gone, or silent for the timeout, ends a wait in any phase", "[waits]") {
  using test::says;
  const Sign works{.life = Life::alive, .silence = Seconds{0}};
  const TransportOptions options{.timeout = Seconds{1}};
  const auto with = [&](Life life, double seconds) {
    return end_of(options, Phase::save, {kMe, works, {.life = life, .silence = Seconds{seconds}}});
  };
  CHECK(says(with(Life::gone, 6), "gave up broadcast: the process of rank 2 has ended without a word"));
  CHECK(with(Life::gone, 1) == "");  // its last words may be on their way
  CHECK(says(with(Life::silent, 11), "gave up broadcast: rank 2 has not been heard of for 11 s"));
  CHECK(with(Life::silent, 9) == "");  // its machine may be busy
}

TEST_CASE("heartbeats tell who is alive, what he does, and who has left", "[waits]") {
  std::string invitation;
  const auto host = Heartbeats::host(3, kHere, invitation, kFast);
  REQUIRE(host);
  auto one = Heartbeats::guest(Rank{1}, 3, invitation, kFast);
  auto two = Heartbeats::guest(Rank{2}, 3, invitation, kFast);
  REQUIRE((one && two));
  two->show(Phase::save, true);
  const auto all_alive = [&](const Heartbeats& seen, int me) {
    for (int r = 0; r < 3; ++r) {
      if (r != me && seen.of(Rank{r}).life != Life::alive) return false;
    }
    return true;
  };
  REQUIRE(in_time([&] { return all_alive(*host, 0) && all_alive(*one, 1) && all_alive(*two, 2); }));
  for (const Heartbeats* seen : {host.get(), one.get()}) {
    CHECK(in_time([&] { return seen->of(Rank{2}).phase == Phase::save && seen->of(Rank{2}).waits; }));
  }
  CHECK(one->of(Rank{0}).phase == Phase::start_up);
  host->show(Phase::step, false);
  CHECK(in_time([&] { return one->of(Rank{0}).phase == Phase::step; }));
  two.reset();
  CHECK(in_time([&] { return host->of(Rank{2}).life == Life::unknown; }));
  CHECK(in_time([&] { return one->of(Rank{2}).life == Life::unknown; }));
  CHECK(host->of(Rank{1}).life == Life::alive);
}

TEST_CASE("a host that leaves is no loss to those that are still there", "[waits]") {
  std::string invitation;
  auto host = Heartbeats::host(2, kHere, invitation, kFast);
  const auto one = Heartbeats::guest(Rank{1}, 2, invitation, kFast);
  REQUIRE((host && one));
  REQUIRE(in_time([&] { return one->of(Rank{0}).life == Life::alive; }));
  host.reset();
  CHECK(in_time([&] { return one->of(Rank{0}).life == Life::unknown; }));
  std::this_thread::sleep_for(milliseconds(200));
  CHECK(one->of(Rank{0}).life == Life::unknown);
}

TEST_CASE("a guest falls silent, is heard again, and is gone when its connection ends", "[waits]") {
  std::string text;
  const auto host = Heartbeats::host(2, kHere, text, kFast);
  REQUIRE(host);
  const auto invitation = transport::invitation_from(text);
  REQUIRE(invitation);
  const auto life = [&] { return host->of(Rank{1}).life; };
  const auto call = [&](const std::string& secret, std::string* said = nullptr) {
    transport::Connection connection(
        transport::connect_to("127.0.0.1", invitation->places.front().port, /*wake=*/-1));
    REQUIRE(connection.descriptor() >= 0);
    REQUIRE(
        in_time([&] { return connection.read() && connection.received().size() == transport::kNonceBytes; }));
    const std::string hello =
        transport::hello(secret, connection.received(), transport::make_nonce(), Rank{1});
    if (said != nullptr) *said = hello;
    connection.send(hello);
    return connection;
  };
  std::string earlier;
  {
    const transport::Connection stranger = call(std::string(transport::Invitation::kSecretBytes, '0'));
    std::this_thread::sleep_for(milliseconds(300));
    CHECK(life() == Life::unknown);
  }
  {
    transport::Connection guest = call(invitation->secret, &earlier);
    CHECK(earlier.find(invitation->secret) == std::string::npos);
    CHECK(in_time([&] { return life() == Life::alive; }));
  }
  CHECK(in_time([&] { return life() == Life::gone; }));
  {  // what a guest said once proves nothing again
    transport::Connection echo(
        transport::connect_to("127.0.0.1", invitation->places.front().port, /*wake=*/-1));
    echo.send(earlier);
    CHECK(in_time([&] { return !echo.read(); }));
    CHECK(life() == Life::gone);
  }
  {
    transport::Connection guest = call(invitation->secret);
    CHECK(in_time([&] { return life() == Life::alive; }));
    CHECK(in_time([&] { return life() == Life::silent; }));
    CHECK(host->of(Rank{1}).silence > Seconds{0.9});
    guest.send(std::string(1, static_cast<char>(transport::beat_of(Phase::save, false))));
    CHECK(in_time([&] { return life() == Life::alive && host->of(Rank{1}).phase == Phase::save; }));
  }
  CHECK(in_time([&] { return life() == Life::gone; }));
}

TEST_CASE("an invitation to nobody leaves all unknown", "[waits]") {
  CHECK_FALSE(Heartbeats::guest(Rank{1}, 2, ""));
  const transport::Invitation nowhere{.secret = std::string(transport::Invitation::kSecretBytes, 'a'),
                                      .machine = "",
                                      .places = {{"127.0.0.1", 1}}};
  const auto guest = Heartbeats::guest(Rank{1}, 2, to_text(nowhere), kFast);
  REQUIRE(guest);
  std::this_thread::sleep_for(milliseconds(200));
  CHECK(guest->of(Rank{0}).life == Life::unknown);
}

TEST_CASE("who answers without the secret is not believed, an echo neither", "[waits]") {
  std::uint16_t port = 0;
  const transport::Descriptor listener = transport::listen_at("127.0.0.1", port);
  REQUIRE(listener.valid());
  const transport::Invitation there{.secret = std::string(transport::Invitation::kSecretBytes, 'a'),
                                    .machine = transport::boot_id(),
                                    .places = {{"127.0.0.1", port}}};
  const auto guest = Heartbeats::guest(Rank{1}, 2, to_text(there), kFast);
  REQUIRE(guest);
  transport::Descriptor socket;
  REQUIRE(in_time([&] { return (socket = transport::accept_one(listener)).valid(); }));
  transport::Connection stranger(std::move(socket));
  std::string heard;
  const auto hears = [&] {
    const bool open = stranger.read();
    heard += std::exchange(stranger.received(), {});
    return open;
  };
  SECTION("another protocol") {
    // As a table this would say that all are gone.
    stranger.send("SSH-2.0-OpenSSH\n" + std::string(200, '\3'));
    CHECK(in_time([&] { return !hears(); }));
  }
  SECTION("an echo") {
    stranger.send(transport::make_nonce());
    REQUIRE(in_time([&] { return hears() && heard.size() == transport::kHelloBytes; }));
    CHECK(heard.find(there.secret) == std::string::npos);
    stranger.send(heard.substr(4 + transport::kNonceBytes));  // its own proof
    CHECK(in_time([&] { return !hears(); }));
  }
  CHECK(guest->of(Rank{0}).life == Life::unknown);
}

TEST_CASE("strangers that say nothing go after a while", "[waits]") {
  std::string text;
  transport::HeartbeatTimes times = kFast;
  times.stranger = Seconds{0.3};
  const auto host = Heartbeats::host(2, kHere, text, times);
  REQUIRE(host);
  const auto port = transport::invitation_from(text)->places.front().port;
  transport::Connection silent(transport::connect_to("127.0.0.1", port, /*wake=*/-1));
  REQUIRE(silent.descriptor() >= 0);
  CHECK(in_time([&] { return !silent.read(); }));
}

TEST_CASE("a host listens where its guests are, and nowhere else", "[waits]") {
  using transport::Network;
  using transport::Reach;
  const auto at = [](std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    return (a << 24U) | (b << 16U) | (c << 8U) | d;
  };
  constexpr std::uint32_t k24 = 0xFFFFFF00, k16 = 0xFFFF0000;
  const Reach host{"kernel/net:[1]",
                   {{at(10, 0, 0, 1), k24}, {at(192, 168, 5, 1), k24}, {at(172, 17, 0, 1), k16}}};
  const Reach here{"kernel/net:[1]", host.networks};
  const Reach beside{"other/net:[1]", {{at(10, 0, 0, 2), k24}, {at(172, 17, 0, 1), k16}}};
  const Reach storage{"third/net:[1]", {{at(192, 168, 5, 9), k24}}};
  const Reach far{"far/net:[1]", {{at(10, 9, 0, 2), k24}}};
  const Reach container{"kernel/net:[2]", {{at(172, 17, 0, 3), k16}}};
  using Addresses = std::vector<std::string>;
  CHECK(listening_addresses(host, {here, here}) == Addresses{"127.0.0.1"});
  CHECK(listening_addresses(host, {beside}) == Addresses{"10.0.0.1"});
  CHECK(listening_addresses(host, {here, beside, storage}) ==
        Addresses{"10.0.0.1", "192.168.5.1", "127.0.0.1"});
  CHECK(listening_addresses(host, {container}) == Addresses{"172.17.0.1"});
  CHECK(listening_addresses(host, {beside, far}) == Addresses{"0.0.0.0"});
  const Reach again = transport::reach_from(to_text(host));
  CHECK(again.place == host.place);
  CHECK((again.networks == host.networks));
  CHECK(transport::own_reach().place.starts_with(transport::boot_id()));
}

TEST_CASE("texts travel in pieces, and what is too long for an all_gather is refused", "[waits]") {
  std::string text = "abcdefgh";
  std::vector<std::string> pieces;
  transport::each_piece(text, 3,
                        [&](const char* first, std::size_t bytes) { pieces.emplace_back(first, bytes); });
  CHECK(pieces == std::vector<std::string>{"abc", "def", "gh"});
  CHECK(transport::gather_offsets({3, 0, 4}) == std::vector<int>{0, 3, 3});
  CHECK(transport::gather_offsets({INT_MAX}) == std::vector<int>{0});
  CHECK_THROWS_WITH(
      transport::gather_offsets({1200 << 20, 1200 << 20}),
      Catch::Matchers::ContainsSubstring("2 ranks bring more than 2147483647 bytes to an all_gather"));
}
