// What keeps a run's process from hanging: printing, exit.json and ranks that are threads.

#include "base/bounded.h"
#include "engine/run/save/background_writer.h"
#include "engine/run/start/rank_threads.h"
#include "engine/run/train/exit_note.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <future>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <unistd.h>

using namespace stagecraft;
using stagecraft::test::says;

namespace {

class Pipe {
 public:
  Pipe() {
    std::signal(SIGPIPE, SIG_IGN);
    if (::pipe(ends_) != 0) throw std::runtime_error("no pipe");
  }
  ~Pipe() {
    close_reader();
    ::close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  [[nodiscard]] int writer() const { return ends_[1]; }
  void close_reader() {
    if (ends_[0] >= 0) ::close(ends_[0]);
    ends_[0] = -1;
  }
  /// Reads until `last` came, or nothing more does for ten seconds.
  std::string read_until(const std::string& last) const {
    std::string text;
    char buffer[4096];
    (void)::alarm(10);  // a test that hangs ends
    while (!says(text, last)) {
      const ssize_t got = ::read(ends_[0], buffer, sizeof buffer);
      if (got <= 0) break;
      text.append(buffer, static_cast<std::size_t>(got));
    }
    (void)::alarm(0);
    return text;
  }

 private:
  int ends_[2] = {-1, -1};
};

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::string line(int number) { return fmt::format("line {:0>95}\n", number); }  // 101 bytes

}  // namespace

TEST_CASE("text that nobody reads does not hold up who writes it, and what is missing is said",
          "[background_writer]") {
  const Pipe pipe;
  BackgroundWriter writer({}, 1 << 16);
  constexpr int kLines = 5000;  // half a megabyte: more than the pipe and the queue hold
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kLines; ++i) writer.write(pipe.writer(), line(i));
  CHECK(seconds_since(begin) < 5);
  CHECK_FALSE(writer.flush(Seconds{0.05}));

  std::future<std::string> reader =
      std::async(std::launch::async, [&] { return pipe.read_until("the end\n"); });
  REQUIRE(writer.flush(Seconds{10}));
  writer.write(pipe.writer(), "the end\n");
  std::istringstream text(reader.get());
  int whole = 0, missing = 0;
  for (std::string one; std::getline(text, one);) {
    if (one + "\n" == line(whole)) ++whole;
    if (says(one, "lines are missing here")) missing = std::stoi(one.substr(1));
  }
  CHECK(whole > 600);  // 64 KiB at least
  CHECK(missing > 0);
  CHECK(whole + missing == kLines);
}

TEST_CASE("a reader that is gone, or a full disk, is said once and costs nothing more",
          "[background_writer]") {
  Pipe pipe;
  pipe.close_reader();
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  REQUIRE(full >= 0);
  const bool closed = GENERATE(true, false);
  std::atomic<int> said = 0, error = 0;
  {
    BackgroundWriter writer([&](int, int why) {
      ++said;
      error = why;
      return std::string();
    });
    for (int i = 0; i < 100; ++i) writer.write(closed ? pipe.writer() : full, line(i));
    CHECK(writer.flush(Seconds{10}));
  }
  CHECK(said == 1);
  CHECK(error == (closed ? EPIPE : ENOSPC));
  ::close(full);
}

TEST_CASE("a drawing is dropped where text waits", "[background_writer]") {
  const Pipe pipe;
  BackgroundWriter writer;
  for (int i = 0; i < 2000; ++i) writer.write(pipe.writer(), line(i));
  writer.draw(pipe.writer(), "a bar\n");
  writer.write(pipe.writer(), "the end\n");
  CHECK_FALSE(says(pipe.read_until("the end\n"), "a bar"));
  REQUIRE(writer.flush(Seconds{10}));
  writer.draw(pipe.writer(), "a bar\n");
  CHECK(pipe.read_until("a bar\n") == "a bar\n");
}

TEST_CASE("a file system that hangs keeps no failing rank", "[exit_note]") {
  const auto hangs = std::make_shared<std::promise<void>>();
  const auto begin = std::chrono::steady_clock::now();
  const auto written = leave_exit_note(RunPaths{"/nowhere"}, {Rank{1}, {}, "step 3", "why", 2}, Seconds{0.1},
                                       [hangs](const RunPaths&, const ExitRecord&) {
                                         hangs->get_future().wait();
                                         return true;
                                       });
  CHECK_FALSE(written.has_value());
  CHECK(seconds_since(begin) < 5);
  hangs->set_value();
}

TEST_CASE("an exit note is the first, or is not", "[exit_note]") {
  const test::ScratchFolder folder;
  const RunPaths paths{folder.path("")};
  CHECK(leave_exit_note(paths, {Rank{1}, {}, "step 3", "why", 2}) == true);
  CHECK(leave_exit_note(paths, {Rank{0}, {}, "step 3", "rank 1 failed", 4}) == false);
  CHECK(says(test::read_text_file(paths.exit_record()), "\"rank\": 1"));
}

TEST_CASE("threads of ranks are waited for, but not one that hangs after a failure", "[rank_threads]") {
  std::atomic<int> ran = 0;
  RankThreads whole;
  for (int i = 0; i < 3; ++i) whole.start([&] { ++ran; });
  CHECK(whole.wait(Seconds{5}));
  CHECK(ran == 3);

  const auto hangs = std::make_shared<std::promise<void>>();
  RankThreads failed;
  failed.start([hangs] { hangs->get_future().wait(); });
  failed.start([&] { failed.hurry(); });
  const auto begin = std::chrono::steady_clock::now();
  CHECK_FALSE(failed.wait(Seconds{0.1}));
  CHECK(seconds_since(begin) < 5);
  hangs->set_value();
}

TEST_CASE("a thread that cannot be had is an error, and the others are still waited for", "[rank_threads]") {
  int left = 1;
  std::atomic<int> ran = 0;
  RankThreads threads([&](RankThreads::Body body) {
    if (left-- == 0) throw std::system_error(EAGAIN, std::generic_category());
    return std::thread(std::move(body));
  });
  threads.start([&] { ++ran; });
  CHECK_THROWS_AS(threads.start([&] { ++ran; }), std::system_error);
  threads.hurry();
  CHECK(threads.wait(Seconds{5}));
  CHECK(ran == 1);
}

TEST_CASE("work that hangs is left behind, and work that throws is done", "[bounded]") {
  const auto go_on = std::make_shared<std::promise<void>>();
  const auto begin = std::chrono::steady_clock::now();
  CHECK_FALSE(done_within(Seconds{0.05}, [go_on] { go_on->get_future().wait(); }));
  CHECK(seconds_since(begin) < 5);
  go_on->set_value();
  CHECK(done_within(Seconds{60}, [] { throw std::runtime_error("dropped"); }));
  bool ran = false;
  CHECK(done_within(Seconds{60}, [&] { ran = true; }));
  CHECK(ran);
}

TEST_CASE("what takes too long is called overdue, once; what does not is not", "[bounded]") {
  std::atomic<int> calls = 0;
  {
    const Overdue watch(Seconds{0.01}, [&] { ++calls; });
    for (int i = 0; i < 1000 && calls == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(calls == 1);
  {
    const Overdue watch(Seconds{60}, [&] { ++calls; });
  }
  CHECK(calls == 1);
}
