#include "ui/assets.h"

namespace weft::ui {

namespace {

std::string_view type_of(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "text/plain; charset=utf-8";
}

}  // namespace

std::optional<Asset> find_asset(std::string_view path) {
  if (!path.starts_with('/')) return std::nullopt;
  const std::string_view name = path == "/" ? "index.html" : path.substr(1);
  for (const EmbeddedFile& file : embedded_files())
    if (file.name == name) return Asset{file.bytes, type_of(name)};
  return std::nullopt;
}

}  // namespace weft::ui
