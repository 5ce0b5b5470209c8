#pragma once

// Times that vary from action to action, by numbers drawn from (seed, sample, rank, place in its list): the
// same action of the same sample varies the same way whatever the links, and in whichever order actions are
// looked at.

#include "schedules/simulator/pass.h"

#include <cstdint>
#include <vector>

namespace stagecraft::simulator {

/// The log-normal distribution with median 1 and the given interquartile range has this sigma: its quartiles
/// are exp(-z sigma) and exp(z sigma), z = 0.6745, so that the range is 2 sinh(z sigma).
[[nodiscard]] double log_normal_sigma(double range);

/// Standard normal, by Box and Muller's transform of two hashed counters.
[[nodiscard]] double normal_of(std::uint64_t key, std::int32_t rank, std::int32_t place);

/// Sigmas of every price of `code`.
struct Sigmas {
  std::vector<double> compute;  ///< per stage_replica and part
  double link = 0;
};
[[nodiscard]] Sigmas sigmas(const Instructions& code, const CostTable& costs, double stage_spread,
                            double link_spread);

class JitterHooks : public Hooks {
 public:
  JitterHooks(const Sigmas& sigmas, std::uint64_t seed) : sigmas_(sigmas), seed_(seed) {}

  void sample(std::uint64_t number);
  [[nodiscard]] double compute_seconds(const Instruction& i, double price) const {
    return vary(i, price, sigmas_.compute[static_cast<std::size_t>(i.operand)]);
  }
  [[nodiscard]] double transfer_seconds(const Instruction& i, double price) const {
    return vary(i, price, sigmas_.link);
  }

 private:
  static double vary(const Instruction& i, double price, double sigma, std::uint64_t key);
  [[nodiscard]] double vary(const Instruction& i, double price, double sigma) const {
    return sigma == 0 || price == 0 ? price : vary(i, price, sigma, key_);
  }

  const Sigmas& sigmas_;
  std::uint64_t seed_;
  std::uint64_t key_ = 0;
};

}  // namespace stagecraft::simulator
