#pragma once

// The legend of an SVG picture: what occurs in it, and nothing else.

#include "stagecraft/schedules/pictures/layout.h"
#include "stagecraft/schedules/pictures/svg_writer.h"

namespace stagecraft::pictures {

class Legend {
 public:
  /// `layout` needs its width, not yet its heights.
  explicit Legend(const Layout& layout);
  [[nodiscard]] int lines() const;
  void write(SvgWriter& svg, double top) const;

 private:
  enum class Mark : std::uint8_t { swatch, line, dot };
  struct Entry {
    Mark mark;
    std::string label;
    std::vector<std::string> fills;  ///< several: the shades of a rank's stages
    double x = 0;
    int line = 0;
  };

  void add(Mark mark, std::string label, std::vector<std::string> fills);
  void place(const Layout& layout);

  std::vector<Entry> entries_;
};

}  // namespace stagecraft::pictures
