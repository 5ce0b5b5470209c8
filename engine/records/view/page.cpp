#include "engine/records/view/page.h"

#include "base/sha256.h"
#include "engine/records/view/page_files.h"

#include <array>
#include <string_view>

namespace stagecraft {
namespace {

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    unsigned three = 0;
    for (std::size_t k = 0; k < 3; ++k)
      three = three << 8U | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k)
      text += i + k <= bytes.size() ? kDigits[(three >> (18 - 6 * k)) & 63U] : '=';
  }
  return text;
}

/// As a Content-Security-Policy names a script or a style.
std::string source_of(std::string_view text) {
  const std::string hex = sha256(text);
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return " 'sha256-" + base64(bytes) + "'";
}

void put(std::string& page, std::string_view mark, std::string_view text) {
  page.replace(page.find(mark), mark.size(), text);
}

}  // namespace

std::string document_text(const Json& document) {
  return document.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string page_of(const Json& document) {
  const std::array<const char*, 2> styles{page_files::uPlot_min_css, page_files::page_css};
  const std::array<const char*, 6> scripts{page_files::uPlot_iife_min_js, page_files::words_js,
                                           page_files::charts_js,         page_files::bars_js,
                                           page_files::timeline_js,       page_files::page_js};
  std::string policy = "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src",
              head, body;
  for (const char* style : styles) {
    policy += source_of(style);
    head += std::string("<style>") + style + "</style>\n";
  }
  policy += "; script-src";
  for (const char* script : scripts) {
    policy += source_of(script);
    body += std::string("<script>") + script + "</script>\n";
  }
  policy += document.value("live", false) ? "; connect-src 'self'" : "";
  // "</script>" and "<!--" would end the data early.
  std::string data = document_text(document), escaped;
  for (const char c : data) {
    if (c == '<') {
      escaped += "\\u003c";
    } else {
      escaped += c;
    }
  }
  std::string page = page_files::page_html;
  put(page, "<!--policy-->", policy);
  put(page, "<!--styles-->", head);
  put(page, "<!--scripts-->", body);
  put(page, "<!--data-->", escaped);  // last: it may hold anything
  return page;
}

}  // namespace stagecraft
