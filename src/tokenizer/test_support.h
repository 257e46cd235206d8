// What the tokenizer's tests, benchmark and fuzz targets share: the golden files under
// tests/golden/tokenizer. Test code only.
#pragma once

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace holdfast::tokenizer {

inline std::string golden_path(const std::string& name) {
  return std::string(HF_SOURCE_DIR) + "/tests/golden/tokenizer/" + name;
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The tokenizer.json of the 200k vocabulary, unpacked by xz; empty if the file or xz is missing.
inline std::string o200k_json() {
  const std::string path = golden_path("o200k_harmony.tokenizer.json.xz");
  if (!std::filesystem::exists(path)) return {};
  std::FILE* pipe = ::popen(("xz -dc '" + path + "'").c_str(), "r");
  if (pipe == nullptr) return {};
  std::string json;
  std::string chunk(std::size_t{1} << 16, '\0');
  for (std::size_t count; (count = std::fread(chunk.data(), 1, chunk.size(), pipe)) > 0;) {
    json.append(chunk, 0, count);
  }
  return ::pclose(pipe) == 0 ? json : std::string{};
}

}  // namespace holdfast::tokenizer
