#pragma once

// The files of the page, as the build found them (embed.cmake).

namespace stagecraft::page_files {

extern const char* const page_html;
extern const char* const page_css;
extern const char* const words_js;
extern const char* const charts_js;
extern const char* const bars_js;
extern const char* const timeline_js;
extern const char* const page_js;
extern const char* const uPlot_min_css;
extern const char* const uPlot_iife_min_js;

}  // namespace stagecraft::page_files
