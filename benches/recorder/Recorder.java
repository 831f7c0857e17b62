// As recorder.py, in Tomcat: Recorder PORT FILE FOLDER.
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Collections;
import org.apache.catalina.connector.Connector;
import org.apache.catalina.startup.Tomcat;
import org.apache.coyote.http2.Http2Protocol;

public class Recorder {
    static String quoted(String text) {
        var out = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            out.append(each < 0x20 || each > 0x7e || each == '"' || each == '\\' ? String.format("\\u%04x", (int) each) : each);
        }
        return out.append('"').toString();
    }

    static class Servlet extends HttpServlet {
        final Path records;

        Servlet(Path records) {
            this.records = records;
        }

        @Override
        protected void service(HttpServletRequest request, HttpServletResponse response) throws IOException {
            byte[] body = request.getInputStream().readAllBytes();
            var fields = new ArrayList<String>();
            for (String name : Collections.list(request.getHeaderNames())) {
                for (String value : Collections.list(request.getHeaders(name))) {
                    fields.add("[" + quoted(name) + ", " + quoted(value) + "]");
                }
            }
            String query = request.getQueryString();
            String text = new String(body, 0, Math.min(body.length, 4096), StandardCharsets.ISO_8859_1);
            String line = "{\"method\": " + quoted(request.getMethod())
                + ", \"target\": " + quoted(request.getRequestURI() + (query == null ? "" : "?" + query))
                + ", \"fields\": [" + String.join(", ", fields) + "], \"connection\": " + request.getRemotePort()
                + ", \"body\": " + quoted(text) + ", \"length\": " + body.length + "}\n";
            byte[] bytes = line.getBytes(StandardCharsets.US_ASCII);
            Files.write(records, bytes, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            response.setContentLength(bytes.length);
            response.getOutputStream().write(bytes);
        }
    }

    public static void main(String[] arguments) throws Exception {
        var connector = new Connector();
        connector.setPort(Integer.parseInt(arguments[0]));
        connector.setProperty("address", "127.0.0.1");
        connector.addUpgradeProtocol(new Http2Protocol());
        var tomcat = new Tomcat();
        tomcat.setBaseDir(arguments[2]);
        tomcat.setConnector(connector);
        var context = tomcat.addContext("", arguments[2]);
        Tomcat.addServlet(context, "recorder", new Servlet(Path.of(arguments[1])));
        context.addServletMappingDecoded("/*", "recorder");
        tomcat.start();
        tomcat.getServer().await();
    }
}
