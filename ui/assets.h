// The page's own files, which stand in the program: ui/page. Nothing else is ever served as a file.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace weft::ui {

struct EmbeddedFile {
  std::string_view name;  // "page.js", "uplot/LICENSE"
  std::string_view bytes;
};
std::span<const EmbeddedFile> embedded_files();

struct Asset {
  std::string_view bytes, content_type;
};
// By the path of a request; "/" is the page. Nothing: there is none of that name.
std::optional<Asset> find_asset(std::string_view path);

}  // namespace weft::ui
