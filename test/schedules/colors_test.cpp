// The pictures' colours, as people see them who see no red (protan), no green (deutan) or no blue (tritan),
// and as all others do. Simulated by Machado et al. (IEEE TVCG 15, 2009, severity 1); distances are CIEDE2000
// (Sharma et al., Color Research & Application 30, 2005).

#include "schedules/pictures/event_styles.h"
#include "test/support/catch.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <numbers>
#include <vector>

namespace stagecraft::pictures {
namespace {

using Three = std::array<double, 3>;
using Matrix = std::array<Three, 3>;

constexpr std::array<Matrix, 4> kEyes{{
    {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}},
    {{{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}}},
    {{{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}}},
    {{{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}}},
}};

Three times(const Matrix& matrix, const Three& v) {
  Three out{};
  for (std::size_t i = 0; i < 3; ++i)
    out[i] = matrix[i][0] * v[0] + matrix[i][1] * v[1] + matrix[i][2] * v[2];
  return out;
}

Three linear(const char* color) {
  const long number = std::strtol(color + 1, nullptr, 16);
  Three out{};
  for (std::size_t i = 0; i < 3; ++i) {
    const double c = static_cast<double>((number >> (16 - 8 * i)) & 255) / 255;
    out[i] = c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4);
  }
  return out;
}

Three lab(const char* color, const Matrix& eye) {
  constexpr Matrix kXyz{{{0.4124564, 0.3575761, 0.1804375},
                         {0.2126729, 0.7151522, 0.0721750},
                         {0.0193339, 0.1191920, 0.9503041}}};
  Three seen = times(eye, linear(color));
  for (double& c : seen) c = std::clamp(c, 0.0, 1.0);
  Three xyz = times(kXyz, seen);
  const Three white = times(kXyz, {1, 1, 1});
  for (std::size_t i = 0; i < 3; ++i) {
    const double t = xyz[i] / white[i];
    xyz[i] = t > 216.0 / 24389 ? std::cbrt(t) : (24389.0 / 27 * t + 16) / 116;
  }
  return {116 * xyz[1] - 16, 500 * (xyz[0] - xyz[1]), 200 * (xyz[1] - xyz[2])};
}

double degrees(double radians) { return radians * 180 / std::numbers::pi; }
double cosine(double of_degrees) { return std::cos(of_degrees * std::numbers::pi / 180); }

double ciede2000(const Three& p, const Three& q) {
  constexpr double k25 = 6103515625;  // 25^7
  const auto ratio = [](double chroma) {
    return std::sqrt(std::pow(chroma, 7) / (std::pow(chroma, 7) + k25));
  };
  const double g = 1.5 - 0.5 * ratio((std::hypot(p[1], p[2]) + std::hypot(q[1], q[2])) / 2);
  const double c1 = std::hypot(p[1] * g, p[2]), c2 = std::hypot(q[1] * g, q[2]);
  const auto hue = [](double a, double b) { return std::fmod(degrees(std::atan2(b, a)) + 360, 360); };
  const double h1 = hue(p[1] * g, p[2]), h2 = hue(q[1] * g, q[2]);
  double turn = c1 * c2 == 0 ? 0 : h2 - h1;
  if (turn > 180) turn -= 360;
  if (turn < -180) turn += 360;
  const double middle = h1 + turn / 2;
  const double l = (p[0] + q[0]) / 2, c = (c1 + c2) / 2;
  const double t = 1 - 0.17 * cosine(middle - 30) + 0.24 * cosine(2 * middle) +
                   0.32 * cosine(3 * middle + 6) - 0.2 * cosine(4 * middle - 63);
  const double sl = 1 + 0.015 * (l - 50) * (l - 50) / std::sqrt(20 + (l - 50) * (l - 50));
  const double sc = 1 + 0.045 * c, sh = 1 + 0.015 * c * t;
  const double around = (std::fmod(middle + 360, 360) - 275) / 25;
  const double rotation =
      -2 * ratio(c) * std::sin(2 * 30 * std::exp(-around * around) * std::numbers::pi / 180);
  const double dl = (q[0] - p[0]) / sl, dc = (c2 - c1) / sc;
  const double dh = 2 * std::sqrt(c1 * c2) * std::sin(turn / 2 * std::numbers::pi / 180) / sh;
  return std::sqrt(dl * dl + dc * dc + dh * dh + rotation * dc * dh);
}

double least(const char* a, const char* b) {
  double distance = 1e9;
  for (const Matrix& eye : kEyes) distance = std::min(distance, ciede2000(lab(a, eye), lab(b, eye)));
  return distance;
}

double light(const char* color) {
  const Three c = linear(color);
  return 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
}
double contrast(const char* a, const char* b) {
  const auto [low, high] = std::minmax(light(a), light(b));
  return (high + 0.05) / (low + 0.05);
}

std::vector<const Style*> styles(EventStyle first, EventStyle last) {
  std::vector<const Style*> found;
  for (int i = static_cast<int>(first); i <= static_cast<int>(last); ++i)
    found.push_back(&style_of(static_cast<EventStyle>(i)));
  return found;
}

}  // namespace

TEST_CASE("distances of colours are those of the paper", "[colors]") {
  CHECK(ciede2000({50, 2.6772, -79.7751}, {50, 0, -82.7485}) == Approx(2.0425).margin(1e-4));
  CHECK(ciede2000({50, 2.5, 0}, {58, 24, 15}) == Approx(19.4535).margin(1e-4));
  CHECK(ciede2000({90.8027, -2.0831, 1.441}, {91.1528, -1.6435, 0.0447}) == Approx(1.4441).margin(1e-4));
}

TEST_CASE("what ranks do is told apart whatever one's eyes see", "[colors]") {
  const auto work = styles(EventStyle::forward, EventStyle::tie);
  double fills = 1e9, shades = 1e9;
  for (const Style* a : work) {
    for (const Style* b : work) {
      if (a == b) continue;
      INFO(a->label << ", " << b->label);
      CHECK(least(a->fill, b->fill) >= 10);
      CHECK(least(a->fill, b->deep) >= 6);
      CHECK(least(a->deep, b->deep) >= 6);
      fills = std::min(fills, least(a->fill, b->fill));
      shades = std::min({shades, least(a->fill, b->deep), least(a->deep, b->deep)});
    }
  }
  INFO("least: " << fills << ", of shades " << shades);
  CHECK(fills < 1e9);
}

TEST_CASE("what travels, and what is waited for, is told apart whatever one's eyes see", "[colors]") {
  const auto sent = styles(EventStyle::sent_activation, EventStyle::sent_sum);
  const auto waits = styles(EventStyle::wait_activation, EventStyle::wait_send);
  for (std::size_t i = 0; i < sent.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      INFO(sent[i]->label << ", " << sent[j]->label);
      CHECK(least(sent[i]->fill, sent[j]->fill) >= 15);
    }
  }
  for (std::size_t i = 0; i < waits.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) CHECK(least(waits[i]->deep, waits[j]->deep) >= 15);
  }
}

TEST_CASE("labels can be read on their boxes, of any shade", "[colors]") {
  for (const Style* style : styles(EventStyle::forward, EventStyle::tie)) {
    INFO(style->label);
    CHECK(contrast(style->ink, style->fill) >= 4.5);
    CHECK(contrast(style->ink, style->deep) >= 4.5);
  }
}

}  // namespace stagecraft::pictures
