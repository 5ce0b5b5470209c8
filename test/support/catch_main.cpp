// The main program of the tests, and two rules for all of them: Catch2's assertions are not thread-safe, so only the
// first thread makes any, and others throw (test/support/demand.h). And what they start has the signals of a terminal,
// however they were started: under nohup, or in a script's background, some are ignored.

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_session.hpp>
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
int main(int argc, char** argv) { return Catch::Session().run(argc, argv); }
using Listener = Catch::EventListenerBase;
#else
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
using Listener = Catch::TestEventListenerBase;
#endif

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

class Rules : public Listener {
 public:
  using Listener::Listener;
  void testRunStarting(const Catch::TestRunInfo& /*run*/) override {
    for (const int signal : {SIGHUP, SIGINT, SIGQUIT}) std::signal(signal, SIG_DFL);
  }
  void assertionStarting(const Catch::AssertionInfo& assertion) override {
    if (std::this_thread::get_id() == first_) return;
    std::fprintf(stderr, "%s:%zu: an assertion on a thread of its own, which has to throw instead (demand)\n",
                 assertion.lineInfo.file, assertion.lineInfo.line);
    std::abort();
  }

 private:
  std::thread::id first_ = std::this_thread::get_id();
};

CATCH_REGISTER_LISTENER(Rules)

}  // namespace
