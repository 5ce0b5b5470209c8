// What the page is told of run directories: histories that grow, shrink and are long, and how a run is.

#include "base/files.h"
#include "engine/records/metrics/run_holder.h"
#include "engine/records/report/rank_record.h"
#include "engine/records/report/share_history.h"
#include "engine/records/view/page.h"
#include "engine/records/view/run_view.h"
#include "schedules/pictures/event_styles.h"
#include "test/support/catch.h"
#include "test/support/command.h"
#include "test/support/scratch_folder.h"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sys/wait.h>
#include <unistd.h>

namespace stagecraft {
namespace {

constexpr std::size_t kAll = std::size_t{1} << 30U;

std::string line(std::int64_t step, double ms = 10, bool skipped = false) {
  return fmt::format(
      "{{\"step\":{},\"validation\":false,\"loss\":{},\"gradient_norm\":1.5,\"skipped\":{},\"learning_rate\":"
      "0.1,"
      "\"ms\":{},\"samples_per_second\":100}}\n",
      step, 1.0 / static_cast<double>(step), skipped, ms);
}

std::string lines(std::int64_t first, std::int64_t last, double ms = 10) {
  std::string text;
  for (std::int64_t step = first; step <= last; ++step) text += line(step, ms);
  return text;
}

/// A run directory made by hand.
struct Made {
  test::ScratchFolder folder;
  std::string root = folder.path("run");
  RunView view{root};

  explicit Made(bool exists = true) {
    if (exists) std::filesystem::create_directories(root + "/logs");
  }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(root + "/" + name, std::ios::binary) << text;
  }
  void append(const std::string& name, const std::string& text) const {
    std::ofstream(root + "/" + name, std::ios::binary | std::ios::app) << text;
  }
  void copy_plan() const {
    std::filesystem::copy_file(STAGECRAFT_TEST_DATA "/run/plan.json", root + "/plan.json");
    write("config.json", "{\"train_steps\": 100}");
  }
  /// As a run of this machine that is at work leaves it: `process` 0 is this one.
  void hold(long process = 0) const {
    write(".lock", fmt::format("Stagecraft run.0\n{} here {} session.0\n",
                               process == 0 ? ::getpid() : process, process_numbers_here()));
  }
  Json look() {
    while (!view.follow(kAll)) continue;
    return view.document();
  }
};

}  // namespace

TEST_CASE("a history is read as it grows, and a line that is being written waits", "[view]") {
  Made run;
  run.write("metrics.jsonl", lines(1, 3) + "{\"step\":4,\"vali");
  CHECK(run.look()["progress"]["step"] == 3);
  run.append("metrics.jsonl", line(4).substr(15));
  const Json all = run.look();
  CHECK(all["series"]["step"] == Json({1, 2, 3, 4}));
  CHECK(all["series"]["loss"][3] == 0.25);
  CHECK(all["remarks"].empty());
  run.append("metrics.jsonl", "no JSON\n{\"newer\":1," + line(5).substr(1));
  CHECK(run.look()["progress"]["step"] == 5);
  CHECK(run.look()["remarks"].size() == 1);
}

TEST_CASE("terms of a loss have curves, with gaps where there are none", "[view]") {
  Made run;
  const auto with = [](const std::string& line, const std::string& terms) {
    return "{\"terms\":" + terms + "," + line.substr(1);
  };
  std::string valid = with(line(2), R"({"ce":0.5})");
  valid.replace(valid.find("\"validation\":false"), 18, "\"validation\":true");
  run.write("metrics.jsonl",
            line(1) + with(line(2), R"({"ce":0.25,"aux":null})") + valid + with(line(3), R"({"ce":0.125})"));
  const Json all = run.look();
  CHECK(all["progress"]["terms"] == Json{{"ce", 0.125}});
  const Json& terms = all["series"]["terms"];
  CHECK(terms.size() == 2);
  CHECK(terms["ce"]["line"] == Json({nullptr, 0.25, 0.125}));
  CHECK(terms["ce"]["validation"] == Json::array({0.5}));
  CHECK(terms["aux"]["line"] == Json({nullptr, nullptr, nullptr}));
  CHECK(terms["aux"]["validation"] == Json::array({nullptr}));
}

TEST_CASE("the terms of a long history are told in stretches", "[view]") {
  Made run;
  std::string text;
  for (std::int64_t step = 1; step <= 4'000; ++step) {
    text += fmt::format("{{\"terms\":{{\"ce\":{}}},{}", step % 2, line(step).substr(1));
  }
  run.write("metrics.jsonl", text);
  const Json series = run.look()["series"];
  REQUIRE(series["width"] == 2);
  CHECK(series["terms"]["ce"]["line"].size() == series["step"].size());
  CHECK(series["terms"]["ce"]["line"][7] == 0.5);
  CHECK(series["terms"]["ce"]["low"][7] == 0);
  CHECK(series["terms"]["ce"]["high"][7] == 1);
}

TEST_CASE("a history that was cut back is read anew, also where it has grown beyond its old end", "[view]") {
  Made run;
  run.write("metrics.jsonl", lines(1, 50));
  CHECK(run.look()["series"]["step"].size() == 50);
  SECTION("shorter") { run.write("metrics.jsonl", lines(1, 20)); }
  SECTION("longer, by another session's times") {
    run.write("metrics.jsonl", lines(1, 20) + lines(21, 90, 12));
    CHECK(run.look()["series"]["step"].size() == 90);
    CHECK(run.look()["series"]["ms"][89] == 12);
    return;
  }
  SECTION("gone") {
    std::filesystem::remove(run.root + "/metrics.jsonl");
    CHECK(run.look()["series"]["step"].empty());
    return;
  }
  CHECK(run.look()["series"]["step"].size() == 20);
}

TEST_CASE("a long history is told in stretches, and its skipped steps are counted", "[view]") {
  Made run;
  constexpr std::int64_t kSteps = 9'000;
  std::string text = lines(1, kSteps / 2) + line(kSteps / 2 + 1, 500, true) + lines(kSteps / 2 + 2, kSteps);
  run.write("metrics.jsonl", text);
  const Json series = run.look()["series"];
  CHECK(series["width"] == 8);
  CHECK(series["step"].size() == kSteps / 8);
  CHECK(series["step"].back() == kSteps);
  CHECK(series["ms_high"][kSteps / 16] == 500);
  CHECK(series["ms_low"][kSteps / 16] == 10);
  CHECK(series["skipped"] == Json::array({Json::array({kSteps / 2 + 8 - kSteps / 2 % 8, 1})}));
  CHECK(document_text(run.look()).size() < 500'000);
}

TEST_CASE("a history of a million steps comes in pieces, within its time and memory", "[.view_long]") {
  Made run;
  {
    std::ofstream out(run.root + "/metrics.jsonl");
    for (std::int64_t step = 1; step <= 1'000'000; ++step) out << line(step);
  }
  const auto begin = std::chrono::steady_clock::now();
  int pieces = 1;
  while (!run.view.follow(std::size_t{8} << 20U)) ++pieces;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const Json document = run.view.document();
  CHECK(document["progress"]["step"] == 1'000'000);
  CHECK(document["series"]["step"].size() <= RunHistory::kMostPoints);
  CHECK(pieces >= 10);
  WARN(fmt::format("{} pieces in {:.1f} s, {} bytes of JSON", pieces, took.count(),
                   document_text(document).size()));
}

TEST_CASE("how a run is follows from what it left", "[view]") {
  const auto phase = [](Made& run) { return run.look()["progress"]["phase"]; };
  SECTION("no folder, and one without a plan") {
    Made none(false);
    CHECK(phase(none) == "not begun");
    Made empty;
    CHECK(phase(empty) == "not begun");
  }
  Made run;
  run.copy_plan();
  run.write("metrics.jsonl", lines(1, 40));
  SECTION("running") {
    run.hold();
    const Json progress = run.look()["progress"];
    CHECK(progress["phase"] == "running");
    CHECK(progress["steps"] == 100);
    CHECK(progress["left_s"].get<double>() == Approx(0.6));
    CHECK(progress["step_time"]["predicted_ms"].get<double>() == Approx(161.684).epsilon(1e-3));
  }
  SECTION("killed, failed, stopped, finished") {
    constexpr long kNobody = 99'999'999;  // above any kernel's
    run.hold(kNobody);
    CHECK(phase(run) == "killed");
    run.write("exit.json", R"({"rank": 1, "action": "step 41", "message": "no room", "code": 1})");
    const Json failed = run.look()["progress"];
    CHECK(failed["phase"] == "failed");
    CHECK(failed["words"] == "rank 1, step 41: no room");
    for (const char* damaged : {"", "{", "[1]", R"({"rank": "x"})"}) {
      run.write("exit.json", damaged);
      CHECK(phase(run) == "failed");
    }
    run.write("exit.json", R"({"rank": 1, "action": "", "message": "by TERM", "code": 75})");
    CHECK(phase(run) == "stopped");
    std::filesystem::remove(run.root + "/exit.json");
    std::filesystem::copy_file(STAGECRAFT_TEST_DATA "/run/summary.json", run.root + "/summary.json");
    CHECK(phase(run) == "finished");
  }
  SECTION("of another machine: by when it last wrote") {
    run.write(".lock", "Stagecraft run.0\n1 there other/pid session.0\n");
    CHECK(phase(run) == "running");
    std::filesystem::last_write_time(run.root + "/metrics.jsonl",
                                     std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
    CHECK(phase(run) == "silent");
  }
}

TEST_CASE("sessions and checkpoints come from the log of rank 0", "[view]") {
  Made run;
  const std::string who = "[2026-11-28 20:34:50.740] [rank 0: stage 0] [info] ";
  run.write("logs/rank-0.log", who + "rank 0: stage 0 of 2 over local, 1 threads\n" + who +
                                   "/a/checkpoints/step-00000020 written\n" + who +
                                   "rank 0: stage 0 of 2 over local, 1 threads\n");
  CHECK(run.look()["marks"]["restarts"].empty());  // the next line says from where
  run.append("logs/rank-0.log", who + "state of step 20 from /a/checkpoints/step-00000020\n");
  std::filesystem::create_directories(run.root + "/checkpoints/step-00000040");
  const Json marks = run.look()["marks"];
  CHECK(marks["restarts"] == Json({20}));
  CHECK(marks["checkpoints"] == Json::array({Json::array({20, false}), Json::array({40, true})}));
}

TEST_CASE("a run without a summary has the figures of its lines", "[view]") {
  Made run;
  run.copy_plan();
  run.write("metrics.jsonl", lines(1, 3));
  CHECK(run.look()["report"]["steps"] == 3);
  run.append("metrics.jsonl", lines(4, 9, 20));
  (void)run.look();  // more may come, as long as it goes
  const Json report = run.look()["report"];
  CHECK(report["steps"] == 9);
  CHECK(report["step_p99_ms"] == 20);
}

TEST_CASE("a process that has ended is gone, though its parent has not asked how", "[view]") {
  Made run;
  run.copy_plan();
  run.write("metrics.jsonl", lines(1, 3));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t ended;
  REQUIRE(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT) == 0);  // and stays a zombie
  run.hold(child);
  CHECK(::kill(child, 0) == 0);
  CHECK(run.look()["progress"]["phase"] == "killed");
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(run.look()["progress"]["phase"] == "killed");
}

TEST_CASE("plan, report and timelines are told once per version", "[view]") {
  RunView view(STAGECRAFT_TEST_DATA "/run");
  (void)view.follow(kAll);
  const Json document = view.document();
  CHECK(document["plan"]["stages"].size() == 2);
  CHECK(document["report"]["stage_times"].size() == 2);
  CHECK(document["measured"]["timeline"]["last_step"] == 6);
  const Json shares = document["measured"]["shares"];
  for (std::size_t step = 0; step < 2; ++step) {
    for (const Json& rank : shares["ms"][step]) {
      double sum = 0;
      for (const Json& part : rank) sum += part.get<double>();
      CHECK(sum == Approx(shares["window_ms"][step].get<double>()).epsilon(1e-3));
    }
  }
  CHECK(document["predicted"]["timeline"]["ranks"].size() == 2);
  CHECK_FALSE(view.document(document["version"].get<std::int64_t>()).contains("report"));
}

TEST_CASE(
    "what ranks write while a run goes is shown by the steps that all have, without those that have none",
    "[view]") {
  Made run;
  run.copy_plan();
  run.hold();
  run.write("metrics.jsonl", lines(1, 3));
  std::filesystem::create_directories(run.root + "/live");
  const int world = read_plan(run.root + "/plan.json").placement().world();
  REQUIRE(world == 2);
  const auto record = [&](int rank, std::int64_t step) {
    RankRecord its;
    its.rank = Rank{rank};
    its.name = fmt::format("rank {}", rank);
    its.boot = "here";
    its.peak = Bytes{1000 + step};
    its.core_share = 0.5;
    const Action forward{.op = Op::forward, .stage = StageId{rank}, .micro_batch = MicroBatch{0}};
    const double begin = static_cast<double>(step) + rank * 0.25;
    its.events.push_back({.rank = Rank{rank},
                          .action = forward,
                          .begin = Seconds{begin},
                          .end = Seconds{begin + 0.25},
                          .step = step});
    return record_json(its);
  };
  const auto write = [&](int rank, std::int64_t step) {
    run.write(fmt::format("live/rank-{}.json.new", rank), record(rank, step).dump());
    std::filesystem::rename(run.root + fmt::format("/live/rank-{}.json.new", rank),
                            run.root + fmt::format("/live/rank-{}.json", rank));
  };
  CHECK(run.look()["measured"]["timeline"].is_null());
  write(0, 2);
  const auto rank_1_is_missing = [&](const Json& seen) {
    return seen["remarks"] ==
           Json({fmt::format("the last steps of rank 1 are left out: {}/live/rank-1.json: is not there",
                             run.root)});
  };
  CHECK(run.look()["measured"]["timeline"]["events"].size() == 1);
  CHECK(rank_1_is_missing(run.look()));
  write(1, 2);
  const Json first = run.look();
  CHECK(first["measured"]["timeline"]["events"].size() == 2);
  CHECK(first["measured"]["shares"]["steps"] == Json({3}));
  CHECK(first["report"]["memory"][1]["measured_bytes"] == 1002);
  CHECK(first["report"]["ended"] == false);
  CHECK(first["report"]["core_shares"] == Json({0.5, 0.5}));
  const auto version = first["version"].get<std::int64_t>();
  CHECK(run.look()["version"] == version);
  write(0, 12);
  CHECK(run.look()["measured"]["shares"]["steps"] == Json({3}));
  CHECK(run.look()["remarks"].empty());
  // One that is cut short is left out, and the others are shown.
  run.write("live/rank-1.json", "{\"rank\": 1, \"trace");
  const Json without = run.look();
  CHECK(without["measured"]["shares"]["steps"] == Json({13}));
  CHECK(without["measured"]["timeline"]["events"].size() == 1);
  CHECK(without["remarks"] ==
        Json({fmt::format(
            "the last steps of rank 1 are left out: {}/live/rank-1.json: not valid JSON: line 1, "
            "column 13: the text that begins here has no end; expected a double quote in the same line",
            run.root)}));
  CHECK(without["report"]["memory"][0]["measured_bytes"] == 1012);
  CHECK(without["report"]["memory"][1]["measured_bytes"].is_null());
  CHECK(without["report"]["stage_times"][1]["forward"]["measured_ms"].is_null());
  CHECK(without["report"]["core_shares"] == Json({0.5, 0.0}));
  // So is one that is gone.
  std::filesystem::remove(run.root + "/live/rank-1.json");
  CHECK(rank_1_is_missing(run.look()));
  CHECK(run.look()["report"]["memory"][0]["measured_bytes"] == 1012);
  run.write("live/rank-0.json", "{}");
  CHECK(run.look()["remarks"].size() == 2);
  CHECK(run.look()["measured"]["shares"]["steps"] == Json({13}));  // older ones are better than none
  run.write("live/rank-0.json", record(0, 12).dump());
  write(1, 12);
  CHECK(run.look()["measured"]["shares"]["steps"] == Json({13}));
  CHECK(run.look()["measured"]["timeline"]["events"].size() == 2);
  CHECK(run.look()["remarks"].empty());
  CHECK(run.look()["version"] > version);
  // Hostile ones are passed over.
  for (const char* text : {"", "[]", "{}", R"({"rank": -1})", R"({"rank": 99999999999})", R"({"rank": "1"})",
                           R"({"rank": 1, "name": "", "boot": "", "origin_s": 1e308, "meetings_s": [1],
                               "peak_bytes": 1, "trace": {"traceEvents": []}})",
                           R"({"rank": 1, "name": "", "boot": "", "origin_s": 0, "meetings_s": [[], [1]],
                               "peak_bytes": -1, "trace": {"traceEvents": []}})",
                           R"({"rank": 1, "name": "", "boot": "", "origin_s": 0, "meetings_s": [],
                               "peak_bytes": 1, "core_share": 1e99, "trace": {"traceEvents": []}})"}) {
    run.write("live/rank-1.json", text);
    const Json seen = run.look();
    CHECK(seen["measured"]["shares"]["steps"] == Json({13}));
    REQUIRE(seen["remarks"].size() == 1);
    CHECK(seen["remarks"][0].get<std::string>().starts_with("the last steps of rank 1 are left out: "));
    CHECK(seen.dump().find("json.exception") == std::string::npos);
  }
}

namespace {

/// Two steps of a rank: forwards of `busy` ms, then nothing until 10 ms.
std::vector<Event> steps_of(std::int64_t first, double busy) {
  std::vector<Event> events;
  for (std::int64_t step = first; step < first + 2; ++step) {
    const double begin = static_cast<double>(step) * 0.01;
    for (const auto& [at, ms] : {std::pair{0.0, busy}, {9.0, 1.0}}) {
      events.push_back({.rank = Rank{3},
                        .action = {.op = at == 0 ? Op::forward : Op::step, .stage = StageId{0}},
                        .begin = Seconds{begin + at * 1e-3},
                        .end = Seconds{begin + (at + ms) * 1e-3},
                        .step = step});
    }
  }
  return events;
}

}  // namespace

TEST_CASE("where a rank's time went is kept over the run, in entries that become wider", "[view]") {
  ShareHistory history;
  for (std::int64_t step = 0; step < 4000; step += 10)
    history.add(steps_of(step, 2 + (step >= 2000 ? 4 : 0)));
  CHECK(history.width() == 16);
  CHECK(history.entries().size() == 250);
  const Json written = history.json();
  ShareHistory read = ShareHistory::from(Json::parse(written.dump()), "shares.json");
  CHECK(read.json() == written);
  const auto& first = read.entries().at(0);
  const auto mean = [](const ShareHistory::Entry& entry, std::size_t i) {
    return entry.ms[i] / entry.samples;
  };
  const auto forward = static_cast<std::size_t>(pictures::EventStyle::forward);
  CHECK(mean(first, forward) == Approx(2).margin(1e-3));
  CHECK(mean(first, static_cast<std::size_t>(pictures::EventStyle::step)) == Approx(1).margin(1e-3));
  CHECK(mean(first, pictures::kLooks) == Approx(7).margin(1e-3));  // idle
  CHECK(mean(read.entries().rbegin()->second, forward) == Approx(6).margin(1e-3));
  read.forget_from(160);
  CHECK(read.entries().size() == 10);
  read.forget_from(0);
  CHECK(read.entries().empty());
}

TEST_CASE("the page has what all ranks have of the run's time, as wide as the widest has it", "[view]") {
  Made run;
  run.copy_plan();
  run.hold();
  run.write("metrics.jsonl", lines(1, 3));
  std::string summary = test::read_text_file(STAGECRAFT_TEST_DATA "/run/summary.json");
  const auto look_again = [&]() -> Json {
    run.write("summary.json", summary += '\n');  // of another size: all is read anew
    return run.look()["measured"]["over_time"];
  };
  std::filesystem::create_directories(run.root + "/shares");
  ShareHistory fine, wide;
  for (const std::int64_t step : {0, 10, 20, 30}) fine.add(steps_of(step, 2));
  for (const std::int64_t step : {0, 10, 20}) wide.add(steps_of(step, 4));
  wide.widen(8);
  run.write("shares/rank-0.json", fine.json().dump());
  CHECK(look_again()["steps"] == Json({2, 12, 22, 32}));
  REQUIRE(run.look()["remarks"].size() == 1);
  CHECK(run.look()["remarks"][0].get<std::string>().ends_with("shares/rank-1.json: is not there"));
  run.write("shares/rank-1.json", wide.json().dump());
  const Json over = look_again();
  INFO(over.dump());
  CHECK(over["steps"] == Json({8, 16, 24}));
  CHECK(over["ms"][0][0][0] == 2.0);
  CHECK(over["ms"][0][1][0] == 4.0);
  CHECK(over["window_ms"][0] == 10.0);
  // Another version's says nothing.
  run.write("shares/rank-1.json", R"({"width": 1, "styles": [], "entries": [[0, 1]]})");
  CHECK(look_again().is_null());
  // Damaged and hostile ones are left out.
  for (const char* text : {"", "[]", "{}", R"({"width": 3, "styles": [], "entries": []})", R"({"width": -1})",
                           R"({"width": 1e30})"}) {
    run.write("shares/rank-1.json", text);
    const Json left = look_again();
    CHECK(left["steps"] == Json({2, 12, 22, 32}));
    CHECK(left["ms"][0][0][0] == 2.0);
    CHECK(left["ms"][0][1][0] == 0.0);
    const Json remarks = run.look()["remarks"];
    REQUIRE(remarks.size() == 1);
    CHECK(remarks[0].get<std::string>().starts_with("the time of rank 1 over the whole run is left out: "));
  }
  Json hostile = wide.json();
  for (const Json& row : {Json({0, 0}), Json({-1, 1}), Json({0, 1, 1e300})}) {
    hostile["entries"] = Json::array({row});
    CHECK_THROWS_AS(ShareHistory::from(hostile, "shares.json"), InputError);
  }
  hostile["entries"] = Json::array({wide.json()["entries"][0], wide.json()["entries"][0]});
  CHECK_THROWS_AS(ShareHistory::from(hostile, "shares.json"), InputError);
}

TEST_CASE("a broken file is a remark, and the rest is shown", "[view]") {
  Made run;
  run.copy_plan();
  run.write("metrics.jsonl", lines(1, 3));
  std::filesystem::copy_file(STAGECRAFT_TEST_DATA "/run/summary.json", run.root + "/summary.json");
  run.write("timeline.json", "{\"traceEvents\": [");
  const Json document = run.look();
  CHECK(document["progress"]["step"] == 3);
  CHECK(document["plan"]["schedule"] == "1f1b");
  REQUIRE(document["remarks"].size() == 1);
  CHECK(test::says(document["remarks"][0].get<std::string>(), "timeline.json"));
  CHECK(document["predicted"]["timeline"]["ranks"].size() == 2);
}

TEST_CASE("names that turn text around are written out", "[view]") {
  std::vector<RunView> runs;
  runs.emplace_back("a\u202eb");
  CHECK(document_of(runs, false)["runs"][0]["name"] == "a\\u202eb");
}

TEST_CASE("nothing in the data ends the page's data early", "[view]") {
  const std::string page = page_of({{"name", "</script><!--<script>\xff"}});
  CHECK(test::says(page, R"(\u003c/script>\u003c!--\u003cscript>)"));
  CHECK(test::says(page, "default-src 'none'"));
  CHECK_FALSE(test::says(page, "connect-src"));
  CHECK(test::says(page_of({{"live", true}}), "connect-src 'self'"));
}

}  // namespace stagecraft
